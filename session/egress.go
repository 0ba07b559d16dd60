package session

import (
	"context"
	"fmt"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/netrule"
)

// Egress lists the hosts that a sandbox reaches though it has no network; the zero value is none. See docs/network.md.
type Egress = netrule.List

// EgressGateway connects sandboxes to hosts. Package gateway/egress has one.
type EgressGateway interface {
	// Open must return the service by which a sandbox reaches what list allows, and what is to be called when its session has
	// ended, which may be after the sandbox was opened again.
	Open(sandbox string, list Egress) (svc Service, end func(), err error)
	// Refused must return what the sandbox was refused since a time.
	Refused(sandbox string, since time.Time) []EgressRefusal
}

// EgressRefusal is a host that was not reached, and why.
type EgressRefusal struct {
	Host string // with its port
	Rule string // that refused
	Hint string // what to do about it
}

// checkEgress checks the hosts that a request names.
func (m *Manager) checkEgress(req Request) error {
	problems := req.Egress.Problems()
	switch {
	case len(problems) > 0:
		return fmt.Errorf("%w: network: %v", backend.ErrInvalid, problems[0])
	case req.Egress.IsZero():
		return nil
	case req.Network != backend.NetworkNone:
		return fmt.Errorf("%w: an allowlist of hosts requires a sandbox without a network", backend.ErrInvalid)
	case m.opts.Egress == nil:
		return fmt.Errorf("%w: allowed hosts require an egress proxy; set Options.Egress", backend.ErrUnsupported)
	}
	return nil
}

// openEgress serves the hosts of the sandbox, unless they are served. A record alone names none, because others may write
// to the store. Each command calls it: another process that joined may have served them, or no request named them.
func (s *Session) openEgress(ctx context.Context) error {
	s.egress.Lock()
	defer s.egress.Unlock()
	s.mu.Lock()
	g, list := s.m.opts.Egress, s.hosts
	s.mu.Unlock()
	if _, served := s.served("egress"); list.IsZero() || g == nil || served {
		return nil
	}
	svc, end, err := g.Open(s.id, list)
	if err != nil {
		return err
	}
	context.AfterFunc(s.ctx, end)
	_, _, err = s.Serve(ctx, svc)
	return err
}

// nameHosts lets commands in a joined sandbox reach its hosts if the request in ctx names the same.
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
	s.mu.Lock()
	s.hosts = base.Egress
	s.mu.Unlock()
}

// answerTime is how long the guest's answer about a command may have been under way, by which its times are too late.
const answerTime = time.Second

// refused returns the hosts that were refused since a command was started.
func (s *Session) refused(since time.Time) []EgressRefusal {
	if s.m.opts.Egress == nil {
		return nil
	}
	return s.m.opts.Egress.Refused(s.id, since)
}
