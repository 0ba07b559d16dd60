package server

import (
	"time"

	"github.com/workcell-dev/workcell/internal/guest/output"
	"github.com/workcell-dev/workcell/internal/guest/proc"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// input writes the input in the request to the command, and copies more input from the stream. send grants credit to
// the host. If the stream carries no more input, input returns nil.
func (e *execution) input(req *wire.RunRequest, send func([]byte)) *proc.StreamInput {
	in := e.proc.Stdin
	if in == nil {
		return nil
	}
	if req.StdinStream {
		return proc.NewStreamInput(send, in, req.StdinOpen)
	}
	rest := in.TryWrite(req.Stdin)
	switch {
	case len(rest) > 0:
		go func() {
			in.Write(rest, nil)
			if !req.StdinOpen {
				in.Close()
			}
		}()
	case !req.StdinOpen:
		in.Close()
	}
	return nil
}

func (s *Server) handleRun(r *request, req *wire.RunRequest) error {
	if req.Terminal != nil {
		return errTerminal()
	}
	e, err := s.startExec(r, req, nil)
	if err != nil {
		return err
	}
	in := e.input(req, r.write)
	if in == nil && req.YieldMillis != 0 && e.quickly() {
		return r.Answer(e.result())
	}
	e.follow()
	left := r.watch(in)
	defer r.Release()
	select {
	case <-e.ended:
	case <-after(req.YieldMillis):
	case <-left:
		// A disconnected host may come back for the command, but not a host with a canceled request.
		if r.cancelled && req.KillOnCancel {
			e.kill(e.grace, wire.ExecKilled)
		}
		return nil
	}
	res := e.result()
	err = r.Answer(res)
	if in != nil && err == nil && res.State == wire.ExecRunning {
		select { // the stream still carries input
		case <-in.Idle:
		case <-e.ended:
		case <-left:
		}
	}
	return err
}

// result returns the current result of a command. It omits output sent to a host or dropped.
func (e *execution) result() *wire.RunResult {
	res := &wire.RunResult{ExecStatus: e.snapshot()}
	if e.rec == nil || e.term != nil || !e.rec.Answer(res) {
		res.Stdout = wire.Output{Total: res.StdoutBytes, Omitted: res.StdoutBytes}
		res.Stderr = wire.Output{Total: res.StderrBytes, Omitted: res.StderrBytes}
	}
	return res
}

func (s *Server) handleAttach(r *request, req *wire.RunRequest) error {
	if req.Terminal != nil {
		return errTerminal()
	}
	sink := output.NewLiveSink(r)
	e, err := s.startExec(r, req, sink)
	if err != nil {
		return err
	}
	in := e.input(req, sink.Control)
	if in == nil && e.quickly() {
		return sink.Finish(e.result())
	}
	e.follow()
	return e.show(r, sink, in, func() {
		e.kill(e.grace, wire.ExecKilled)
		<-e.ended
	})
}

// show sends the live output of a command to a host until the command ends, or until the host disconnects. In the
// latter case, it calls leave.
func (e *execution) show(r *request, v *output.LiveSink, in *proc.StreamInput, leave func()) error {
	left := r.watch(in)
	defer r.Release()
	select {
	case <-e.ended:
		return v.Finish(e.result())
	case <-left:
		_ = r.Close() // unblocks a sink waiting for the host
		leave()
		return nil
	}
}

func (s *Server) handleRead(r *request, req *wire.ReadRequest) error {
	e, err := s.execs.get(req.ExecID)
	if err != nil {
		return err
	}
	if req.SinceSeq < 0 {
		return wire.Errorf(wire.CodeInvalid, "invalid chunk number %d: must not be negative", req.SinceSeq)
	}
	if e.rec == nil {
		return wire.Errorf(wire.CodeInvalid, "the output of this exec was streamed to its host and not recorded")
	}
	left := r.watch(nil)
	defer r.Release()
	res := e.rec.Read(req, left)
	select {
	case <-left:
		return nil // the host must not take the end of the wait for an answer
	default:
		return r.Answer(&res)
	}
}

func (s *Server) handleWait(r *request, req *wire.WaitRequest) error {
	e, err := s.execs.get(req.ExecID)
	if err != nil {
		return err
	}
	limit := after(req.WaitMillis)
	left := r.watch(nil)
	defer r.Release()
	select {
	case <-e.ended:
	case <-limit:
		return r.Answer(e.result())
	case <-left:
		return nil
	}
	for req.Tree && e.tree().Alive() {
		select {
		case <-time.After(treePause):
		case <-limit:
			return r.Answer(e.result())
		case <-left:
			return nil
		}
	}
	return r.Answer(e.result())
}

// treePause is the pause between two checks for remaining processes of a command.
const treePause = 500 * time.Millisecond

// maxExtension is the maximum extension of a command's timeout.
const maxExtension = 24 * time.Hour

func (s *Server) handleDeadline(r *request, req *wire.DeadlineRequest) error {
	if req.AddMillis < 1 || req.AddMillis > wire.MaxExtension {
		return wire.Errorf(wire.CodeInvalid, "the extension is %d ms, it must be 1 to %d", req.AddMillis, wire.MaxExtension)
	}
	e, err := s.execs.get(req.ExecID)
	if err != nil {
		return err
	}
	if !e.extend(time.Duration(req.AddMillis) * time.Millisecond) {
		return wire.Errorf(wire.CodeQuota, "limit of deadline extensions reached (%v)", maxExtension)
	}
	return r.Answer(e.snapshot())
}

func (s *Server) handleStdin(r *request, req *wire.StdinRequest) error {
	e, err := s.execs.get(req.ExecID)
	if err != nil {
		return err
	}
	switch {
	case len(req.Data) > wire.MaxStdinWrite:
		return wire.Errorf(wire.CodeTooLarge, "more than %d bytes at once", wire.MaxStdinWrite)
	case e.final():
		return wire.Errorf(wire.CodeInvalid, "the command has exited")
	case e.proc.Stdin == nil:
		return wire.Errorf(wire.CodeInvalid, "the command was started without standard input")
	}
	left := r.watch(nil)
	defer r.Release()
	if len(req.Data) > 0 && !e.proc.Stdin.Write(req.Data, left) {
		return wire.Errorf(wire.CodeTimeout, "the host stopped waiting before the command took its input")
	}
	if req.EOF {
		e.proc.Stdin.End(left)
	}
	return r.Answer(wire.Empty{})
}

// errTerminal returns an error, because only terminal-v1 creates terminals.
func errTerminal() error {
	return wire.Errorf(wire.CodeInvalid, "%s requires a terminal", wire.OpTerminal)
}

// nudge is how long a response waits for the effect of a signal.
const nudge = 100 * time.Millisecond

func (s *Server) handleKill(r *request, req *wire.KillRequest) error {
	e, err := s.execs.get(req.ExecID)
	if err != nil {
		return err
	}
	var sig unix.Signal
	if req.Signal != "" {
		if sig, err = proc.ParseSignal(req.Signal); err != nil {
			return err
		}
	}
	switch {
	case e.final() && sig != 0: // the signal's target has already exited
	case e.final():
		e.tree().Terminate(e.grace) // remaining background processes
	case sig == 0 || sig == unix.SIGKILL:
		grace := e.grace
		if sig != 0 {
			grace = 0
		}
		e.kill(grace, wire.ExecKilled)
		left := r.watch(nil)
		defer r.Release()
		select {
		case <-e.ended:
		case <-left:
			return nil
		}
	default:
		e.signal(sig)
		select {
		case <-e.ended:
		case <-time.After(nudge):
		}
	}
	return r.Answer(e.snapshot())
}

func listOf(execs []*execution) wire.ExecList {
	list := wire.ExecList{}
	for _, e := range execs {
		list.Execs = append(list.Execs, e.snapshot())
	}
	return list
}
