package sandbox

import (
	"context"
	"fmt"
	"time"

	"github.com/workcell-dev/workcell/internal/rules"
)

// Egress lists the hosts for a sandbox without a network. The zero value allows no host. See
// docs/guides/network-access.md.
type Egress = rules.Hosts

// ServiceUse is an HTTP service of the operator. A sandbox reaches it as http://NAME.workcell. See
// docs/guides/services.md.
type ServiceUse = rules.ServiceUse

// Environment is the set of packages to install in a sandbox. It is the same type as session.Environment.
type Environment = rules.Environment

// EgressGateway connects sandboxes to hosts. Package gateway/egress implements it.
type EgressGateway interface {
	// Open must return the service through which a sandbox reaches the hosts in list. end is called if the service
	// cannot be served, or after the handle has been closed, possibly after the sandbox was opened again.
	Open(sandbox string, list Egress) (svc Service, end func(), err error)
	// Refused must return the sandbox's refused connections since the specified time.
	Refused(sandbox string, since time.Time) []EgressRefusal
}

// EgressRefusal is a refused host and the reason.
type EgressRefusal struct {
	Host string `json:"host"` // with port
	Rule string `json:"rule"` // violated rule
	Hint string `json:"hint"` // suggested fix
}

// openEgress serves the sandbox's hosts, unless they are already served. The hosts must come from a request, not only
// from the record, because other programs may write to the store. Each command calls openEgress, because another
// process may have served the hosts before, or no earlier request had hosts.
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
	if _, _, err = s.Serve(ctx, svc); err != nil {
		end()
		return err
	}
	context.AfterFunc(s.ctx, end)
	return nil
}

// answerTime is the maximum latency of the guest's answer about a command. The times in the answer are late by at most
// this time.
const answerTime = time.Second

// refused returns the hosts refused since the start of a command, and the attempts to connect without the proxy, of
// which the guest knows only the number.
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
