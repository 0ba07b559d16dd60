package server

import (
	"cmp"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// handleClaim assigns a pooled sandbox to a session. The session must not see the commands run to prepare the sandbox.
func (s *Server) handleClaim(r *request, req *wire.ClaimRequest) error {
	timeout := time.Duration(req.OrphanMillis) * time.Millisecond
	if timeout < 0 || timeout.Milliseconds() != req.OrphanMillis {
		return wire.Errorf(wire.CodeInvalid, "orphan timeout of %d ms", req.OrphanMillis)
	}
	s.execs.forgetEnded()
	s.orphan.last(cmp.Or(timeout, never))
	return r.Answer(wire.Empty{})
}
