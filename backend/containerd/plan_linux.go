package containerd

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// plan is what containerd is to be asked for.
type plan struct {
	*kit.Plan
	runtime     string              // path of the OCI runtime's program
	enforcement backend.Enforcement // of the workspace's limit
}

// newPlan checks a plan against what the engine can do.
func (b *driver) newPlan(ctx context.Context, checked *kit.Plan) (*plan, error) {
	p := &plan{Plan: checked, enforcement: backend.WorkspaceWatched}
	if err := checkDomain(p.Ref); err != nil {
		return nil, err
	}
	if err := checked.Enforceable("containerd", b.engine.memory, b.engine.caps); err != nil {
		return nil, err
	}
	setDefault(&p.Spec.OCIRuntime, b.opts.OCIRuntime)
	if err := b.engine.supports(checked); err != nil {
		return nil, err
	}
	var err error
	if p.Spec.Mounts, err = kit.ResolveMounts("containerd", p.Spec.Mounts, b.state.root); err != nil {
		return nil, err
	}
	if p.Sized {
		if err := b.chooseEnforcement(ctx, p, sessionName(p.Spec.ID)); err != nil {
			return nil, err
		}
	}
	p.runtime = b.engine.runtimes[p.Spec.OCIRuntime]
	return p, nil
}

// checkDomain refuses a registry with upper-case letters: it is a misspelt repository, as every engine says, or a
// second spelling of one registry.
func checkDomain(ref string) error {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil || reference.Domain(named) != strings.ToLower(reference.Domain(named)) {
		return fmt.Errorf("containerd: image %.200q: the registry name must be lower case: %w", ref, backend.ErrInvalid)
	}
	return nil
}

// supports refuses what this machine cannot do. The limits were looked at before.
func (e *engine) supports(p *kit.Plan) error {
	switch s := p.Spec; {
	case s.Network == backend.NetworkBridge && !slices.Contains(e.caps.Networks, backend.NetworkBridge):
		return fmt.Errorf("containerd: bridged networks need the CNI plugins bridge, host-local and firewall, and iptables: %w", backend.ErrUnsupported)
	case s.Network == backend.NetworkBridge && !kernelNetwork(s.OCIRuntime):
		return fmt.Errorf("containerd: network filtering is not supported with OCI runtime %.40q: %w", s.OCIRuntime, backend.ErrUnsupported)
	}
	return p.Supports("containerd", e.caps, e.arch)
}

// kernelNetwork reports whether a runtime's containers use the kernel's network stack of their namespace, so that rules
// in that namespace bind them. One with a stack of its own (gVisor, a virtual machine) passes them by.
func kernelNetwork(runtime string) bool {
	return runtime == "runc" || runtime == "crun" || runtime == "youki"
}

// ownKernel reports whether a runtime's containers have a kernel of their own, by its name.
func ownKernel(runtime string) bool {
	return backend.RuntimeIsolation(runtime).AtLeast(backend.IsolationKernel)
}

// familiar returns the short form of a reference, for people.
func familiar(ref string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ref
	}
	return reference.FamiliarString(named)
}
