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
	if len(req.Argv) == 0 {
		shell, err := proc.FindShell(&req.Spawn, s.cfg.Workdir)
		if err != nil {
			return err
		}
		req.Argv = []string{shell}
	}
	e, err := s.startExec(r, req, nil)
	if err != nil {
		return err
	}
	e.unwanted()
	v := output.NewLiveSink(r)
	e.term.Join(v)
	e.follow()
	return e.show(r, v)
}

func (s *Server) handleJoin(r *request, req *wire.TerminalRequest) error {
	e, err := s.atTerminal(req.ExecID)
	if err != nil {
		return err
	}
	v := output.NewLiveSink(r)
	e.term.Join(v)
	_ = e.stdin.Resize(req.Size, true) // it has ended meanwhile, which the answer says
	return e.show(r, v)
}

func (s *Server) handleResize(r *request, req *wire.TerminalRequest) error {
	e, err := s.atTerminal(req.ExecID)
	if err != nil {
		return err
	}
	if !e.final() {
		_ = e.stdin.Resize(req.Size, false) // it has ended meanwhile, and has no size any more
	}
	return r.Answer(wire.Empty{})
}

// atTerminal returns an exec that runs on a terminal.
func (s *Server) atTerminal(id string) (*execution, error) {
	e, err := s.execs.get(id)
	if err == nil && e.term == nil {
		err = wire.Errorf(wire.CodeInvalid, "the command does not run on a terminal")
	}
	return e, err
}

// show keeps a host at a terminal until the command ends or the host leaves. The command runs on without it.
func (e *execution) show(r *request, v *output.LiveSink) error {
	in := proc.NewStreamInput(v.Control, e.stdin, true)
	left := r.watchInput(in)
	defer r.Release()
	select {
	case <-e.ended:
		e.term.Leave(v) // others that come and go set no time for the answer
	case <-left:
		_ = r.st.Close() // frees a viewer that waits for the host
		e.term.Leave(v)
		return nil
	}
	answered := make(chan struct{})
	defer close(answered)
	go func() {
		select {
		case <-answered:
		case <-left:
			_ = r.st.Close()
		}
	}()
	st := e.snapshot()
	return v.Finish(&wire.RunResult{ExecStatus: st, Stdout: wire.Output{Total: st.StdoutBytes, Omitted: st.StdoutBytes}})
}
