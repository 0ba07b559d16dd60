package session

import (
	"context"
	"fmt"

	"github.com/workcell-dev/workcell/backend"
)

// checkEgress checks the allowlist of a request.
func (m *Manager) checkEgress(req Request) error {
	problems := req.Egress.Problems()
	switch {
	case len(problems) > 0:
		return fmt.Errorf("%w: network: %v", backend.ErrInvalid, problems[0])
	case req.Egress.IsZero():
		return nil
	case req.Network != backend.NetworkNone:
		return fmt.Errorf("%w: allowed hosts and services require a sandbox without a network", backend.ErrInvalid)
	case m.opts.Egress == nil:
		return fmt.Errorf("%w: allowed hosts and services require an egress proxy; set Options.Egress",
			backend.ErrUnsupported)
	}
	return nil
}

// nameHosts allows commands in a joined sandbox to reach the allowed hosts if the request in ctx has the same
// allowlist.
func (s *Session) nameHosts(ctx context.Context) {
	base, _ := BaseFromContext(ctx)
	if !s.m.opts.Join || !s.asIs || base.Egress.IsZero() {
		return
	}
	if made, _ := decodeShape(s.made); !made.Egress.Equal(base.Egress) {
		s.m.log.WarnContext(ctx, "commands cannot use the network, because the sandbox was opened with another allowlist; "+
			"configure all servers alike", "sandbox", s.id)
		return
	}
	s.control.SetHosts(base.Egress)
}
