package server

import (
	"cmp"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// claim is whose sandbox this is, when it was made before anybody asked for it.
type claim struct {
	mu    sync.Mutex // guards owner
	owner string
}

// take makes the sandbox owner's and reports whether it is, and whether it was nobody's before.
func (c *claim) take(owner string) (is, first bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first = c.owner == ""
	c.owner = cmp.Or(c.owner, owner)
	return c.owner == owner, first
}

func (c *claim) get() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.owner
}

// handleClaim makes the sandbox the owner's, who finds nothing of what the host ran in it before to have it warm. The same owner
// may ask again, for whom the first answer was lost.
func (s *Server) handleClaim(r *request, req *wire.ClaimRequest) error {
	timeout := time.Duration(req.OrphanMillis) * time.Millisecond
	switch {
	case req.Owner == "" || len(req.Owner) > wire.MaxOwner:
		return wire.Errorf(wire.CodeInvalid, "the owner has %d bytes, it must have 1 to %d", len(req.Owner), wire.MaxOwner)
	case timeout < 0 || timeout.Milliseconds() != req.OrphanMillis:
		return wire.Errorf(wire.CodeInvalid, "orphan timeout of %d ms", req.OrphanMillis)
	}
	is, first := s.claimed.take(req.Owner)
	if !is {
		return wire.Errorf(wire.CodeExists, "the sandbox belongs to another owner")
	}
	if first {
		s.execs.forgetEnded()
	}
	s.orphan.last(cmp.Or(timeout, never))
	return r.Answer(wire.Empty{})
}
