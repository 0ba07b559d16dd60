package sandbox

import (
	"context"
	"fmt"
	"time"

	"github.com/workcell-dev/workcell/internal/rules"
)

// Egress lists the hosts that a sandbox reaches though it has no network; the zero value is none. See docs/network.md.
type Egress = rules.Hosts

// ServiceUse is an HTTP service of the operator that a sandbox reaches as http://NAME.workcell. See docs/services.md.
type ServiceUse = rules.ServiceUse

// EgressGateway connects sandboxes to hosts. Package gateway/egress has one.
type EgressGateway interface {
	// Open must return the service by which a sandbox reaches what list allows, and what is to be called when its handle
	// has ended, which may be after the sandbox was opened again.
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

// openEgress serves the hosts of the sandbox, unless they are served. A record alone names none, because others may
// write to the store. Each command calls it: another process that joined may have served them, or no request named
// them.
func (s *Sandbox) openEgress(ctx context.Context) error {
	s.egress.Lock()
	defer s.egress.Unlock()
	s.mu.Lock()
	g, list := s.o.Egress, s.hosts
	s.mu.Unlock()
	if _, served := s.served("egress"); list.IsZero() || g == nil || served {
		return nil
	}
	svc, end, err := g.Open(s.o.ID, list)
	if err != nil {
		return err
	}
	context.AfterFunc(s.ctx, end)
	_, _, err = s.Serve(ctx, svc)
	return err
}

// answerTime is how long the guest's answer about a command may have been under way, by which its times are too late.
const answerTime = time.Second

// refused returns the hosts that were refused since a command was started, and the attempts to connect without the
// proxy, of which the guest knows only the number.
func (s *Sandbox) refused(since time.Time, direct int64) []EgressRefusal {
	if s.o.Egress == nil {
		return nil
	}
	list := s.o.Egress.Refused(s.o.ID, since)
	if direct > 0 {
		list = append(list, EgressRefusal{
			Host: fmt.Sprintf("unknown (packets sent without the proxy: %d)", direct),
			Rule: "no direct network: TCP, UDP, QUIC, DNS",
			Hint: "A program ignored HTTPS_PROXY. Configure this HTTP proxy in the program, or use another program. " +
				"For SSH, use the options in GIT_SSH_COMMAND. UDP, QUIC, and DNS are not available.",
		})
	}
	return list
}
