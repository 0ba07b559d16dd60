package containerd

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// plan describes the requests to containerd.
type plan struct {
	*kit.Plan
	runtime     string              // path of the OCI runtime
	enforcement backend.Enforcement // enforcement of the workspace limit
}

// newPlan checks a plan against the engine's capabilities.
func (b *driver) newPlan(ctx context.Context, checked *kit.Plan) (*plan, error) {
	p := &plan{Plan: checked, enforcement: backend.WorkspaceWatched}
	if err := checkDomain(p.Ref); err != nil {
		return nil, err
	}
	if err := checked.Enforceable(b.engine.memory, b.engine.caps); err != nil {
		return nil, err
	}
	p.Spec.OCIRuntime = cmp.Or(p.Spec.OCIRuntime, b.opts.OCIRuntime)
	if err := b.engine.supports(checked); err != nil {
		return nil, err
	}
	if err := p.ResolveMounts(nil, b.state.root); err != nil {
		return nil, err
	}
	if p.Sized {
		if err := b.chooseEnforcement(ctx, p, nameOf(p.Spec.ID)); err != nil {
			return nil, err
		}
	}
	p.runtime = b.engine.runtimes[p.Spec.OCIRuntime]
	return p, nil
}

// checkDomain returns an error for a registry with upper-case letters. Such a registry is a misspelled repository,
// which every engine rejects, or a second spelling of the same registry.
func checkDomain(ref string) error {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil || reference.Domain(named) != strings.ToLower(reference.Domain(named)) {
		return fmt.Errorf("containerd: image %.200q: the registry name must be lower case: %w", ref, backend.ErrInvalid)
	}
	return nil
}

// supports returns an error if this host cannot run the plan. The limits have already been checked.
func (e *engine) supports(p *kit.Plan) error {
	switch s := p.Spec; {
	case s.Network == backend.NetworkBridge && !slices.Contains(e.caps.Networks, backend.NetworkBridge):
		return fmt.Errorf("containerd: bridged networks need the CNI plugins bridge, host-local and firewall, and "+
			"iptables: %w", backend.ErrUnsupported)
	case s.Network == backend.NetworkBridge && !kernelNetwork(s.OCIRuntime):
		return fmt.Errorf("containerd: network filtering is not supported with OCI runtime %.40q: %w",
			s.OCIRuntime, backend.ErrUnsupported)
	}
	return p.Supports(e.caps, e.arch)
}

// kernelNetwork reports whether a runtime's containers use the kernel's network stack. Only then, rules in their
// network namespace apply. A separate network stack, for example in gVisor or a virtual machine, bypasses these rules.
func kernelNetwork(runtime string) bool {
	return runtime == "runc" || runtime == "crun" || runtime == "youki"
}

// ownKernel reports whether the containers of the runtime with this name have a separate kernel.
func ownKernel(runtime string) bool {
	return backend.RuntimeIsolation(runtime).AtLeast(backend.IsolationKernel)
}

// familiar returns the short form of a reference, for display.
func familiar(ref string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ref
	}
	return reference.FamiliarString(named)
}
