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

// newPlan checks spec against what can be said without the engine and against what the engine can do.
func (b *Backend) newPlan(ctx context.Context, spec backend.Spec) (*plan, error) {
	checked, err := kit.NewPlan("containerd", spec, b.opts.Images, b.opts.Limits)
	if err != nil {
		return nil, err
	}
	p := &plan{Plan: checked, enforcement: backend.WorkspaceWatched}
	if err := checkDomain(p.Ref); err != nil {
		return nil, err
	}
	if err := kit.Enforceable("containerd", b.engine.memory, b.engine.caps, spec.Limits); err != nil {
		return nil, err
	}
	setDefault(&p.Spec.Runtime, b.opts.Runtime)
	if err := b.engine.supports(p.Spec); err != nil {
		return nil, err
	}
	if p.Sized {
		if err := b.chooseEnforcement(ctx, p, sessionName(spec.ID)); err != nil {
			return nil, err
		}
	}
	p.runtime = b.engine.runtimes[p.Spec.Runtime]
	return p, nil
}

// checkDomain refuses a registry with upper-case letters: it is a misspelt repository, as every engine says, or a second
// spelling of one registry.
func checkDomain(ref string) error {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil || reference.Domain(named) != strings.ToLower(reference.Domain(named)) {
		return fmt.Errorf("containerd: image %.200q: the name of its registry is not in lower case: %w", ref, backend.ErrInvalid)
	}
	return nil
}

// supports refuses what this machine cannot do. The limits were looked at before.
func (e *engine) supports(s backend.Spec) error {
	switch {
	case s.Network != backend.NetworkNone && s.Network != backend.NetworkBridge:
		return fmt.Errorf("containerd: network mode %.40q: %w", s.Network, backend.ErrInvalid)
	case e.runtimes[s.Runtime] == "":
		return fmt.Errorf("containerd: this machine has no runtime %.40q: %w", s.Runtime, backend.ErrUnsupported)
	case s.Platform != "" && s.Platform != "linux/"+e.arch:
		return fmt.Errorf("containerd: this machine runs linux/%s, not %.40q: %w", e.arch, s.Platform, backend.ErrUnsupported)
	case s.Network == backend.NetworkBridge && !slices.Contains(e.caps.Networks, backend.NetworkBridge):
		return fmt.Errorf("containerd: bridged networks need the CNI plugins bridge, host-local and firewall, and iptables: %w", backend.ErrUnsupported)
	case s.Network == backend.NetworkBridge && !kernelNetwork(s.Runtime):
		return fmt.Errorf("containerd: the network of runtime %.40q cannot be guarded: %w", s.Runtime, backend.ErrUnsupported)
	}
	return nil
}

// kernelNetwork reports whether a runtime's containers use the kernel's network stack of their namespace, so that rules
// in that namespace bind them. One with a stack of its own (gVisor, a virtual machine) passes them by.
func kernelNetwork(runtime string) bool {
	return runtime == "runc" || runtime == "crun" || runtime == "youki"
}

// imageName is the short form of a reference, for people.
func (p *plan) imageName() string { return familiar(p.Ref) }

func familiar(ref string) string {
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return ref
	}
	return reference.FamiliarString(named)
}
