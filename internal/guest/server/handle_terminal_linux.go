package server

import (
	"github.com/workcell-dev/workcell/internal/guest/output"
	"github.com/workcell-dev/workcell/internal/guest/proc"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func (s *Server) handleTerminal(r *request, req *wire.RunRequest) error {
	if req.Terminal == nil {
		return wire.Errorf(wire.CodeInvalid, "a terminal without a size")
	}
	e, err := s.startExec(r, req, nil)
	if err != nil {
		return err
	}
	v := output.NewLiveSink(r)
	e.term.Join(v)
	e.follow()
	return e.stay(r, v)
}

func (s *Server) handleJoin(r *request, req *wire.TerminalRequest) error {
	e, err := s.atTerminal(req.ExecID)
	if err != nil {
		return err
	}
	v := output.NewLiveSink(r)
	e.term.Join(v)
	_ = e.proc.Stdin.Resize(req.Size, true) // fails if the command has ended, which the response reports
	return e.stay(r, v)
}

// stay connects a host to a terminal until the command ends or the host disconnects. The command keeps running without
// the host.
func (e *execution) stay(r *request, v *output.LiveSink) error {
	defer e.term.Leave(v)
	return e.show(r, v, proc.NewStreamInput(v.Control, e.proc.Stdin, true), func() {})
}

func (s *Server) handleResize(r *request, req *wire.TerminalRequest) error {
	e, err := s.atTerminal(req.ExecID)
	if err != nil {
		return err
	}
	if !e.final() {
		_ = e.proc.Stdin.Resize(req.Size, false) // fails if the command has ended
	}
	return r.Answer(wire.Empty{})
}

// atTerminal returns a command on a terminal.
func (s *Server) atTerminal(id string) (*execution, error) {
	e, err := s.execs.get(id)
	if err == nil && e.term == nil {
		err = wire.Errorf(wire.CodeInvalid, "the command does not run on a terminal")
	}
	return e, err
}
