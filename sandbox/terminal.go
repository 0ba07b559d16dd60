package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/telemetry"
)

// Errors of terminals.
var (
	// ErrDetached reports that the client has detached. The terminal's command is still running.
	ErrDetached = errors.New("detached from the terminal; its command is still running")
	// ErrTakenOver reports that another client has taken over the terminal. The command is still running, and the client
	// can attach again.
	ErrTakenOver = errors.New("detached from the terminal: another client took it over; its command is still running")
)

// resizePause is the pause between attempts to set the size of a terminal during creation.
const resizePause = 20 * time.Millisecond

// TerminalSize is the size of a terminal in characters. Zeros mean an unknown size.
type TerminalSize struct{ Rows, Cols uint16 }

// TerminalRequest describes a command on a terminal.
type TerminalRequest struct {
	// Argv is passed unchanged. If empty, the command is a shell: the sandbox's $SHELL, or the first available one of
	// bash, zsh, ash, and sh.
	Argv []string
	Dir  string            // defaults to the workspace; a relative path is relative to it
	Env  map[string]string // overrides the sandbox's and the image's environment; the caller should set TERM
	Size TerminalSize
	// Unattended is how long the command may run while no client is attached, from MinExecTimeout to MaxExecTimeout. If
	// zero, it is MaxExecTimeout.
	Unattended time.Duration
}

// TerminalStreams are the client's streams of a terminal. Bytes are copied unchanged in both directions.
type TerminalStreams struct {
	Stdin  io.Reader           // typed input; end of file detaches, nil means no input
	Stdout io.Writer           // terminal output; nil discards it, and a slow writer blocks the command
	Resize <-chan TerminalSize // new sizes; may be nil
}

// Terminal runs a command on a new terminal and stays attached until the command ends. The command continues after the
// client has detached: the output is recorded, and Command.Attach attaches again. Terminal detaches in four cases, and
// the returned error wraps the reason. The reason is ctx's error if ctx ends, ErrDetached if Stdin ends, the error of
// Stdin or Stdout if the stream fails, and ErrTakenOver if another client attaches. If no client is attached for
// req.Unattended, the command is killed.
//
// The result contains the command's ID even if there is an error, unless the command could not be started. Terminal may
// return while a Read of Stdin is still running. If the guest does not support terminals, the error wraps
// backend.ErrUnsupported.
func (s *Sandbox) Terminal(ctx context.Context, req TerminalRequest, at TerminalStreams) (res ExecResult, err error) {
	ctx, span := s.start(ctx, telemetry.SpanTerminal)
	defer func() { s.end(span, "Terminal", &err) }()
	argv := req.Argv
	if len(argv) == 0 {
		argv = []string{"shell"} // placeholder for the shell found by the guest
	}
	run, _, err := s.runRequest(ctx, ExecRequest{Argv: argv, Dir: req.Dir, Env: req.Env})
	if err != nil {
		return ExecResult{}, err
	}
	timeout, err := ExecTimeout(req.Unattended, MaxExecTimeout)
	if err != nil {
		return ExecResult{}, err
	}
	run = wire.RunRequest{Spawn: run.Spawn, ExecID: run.ExecID, Terminal: (*wire.TerminalSize)(&req.Size)}
	run.Argv, run.TimeoutMillis = req.Argv, timeout.Milliseconds()
	span.SetAttributes(telemetry.KeyExecID.String(run.ExecID))
	s.remember(ctx, run.ExecID, "")
	ended, err := s.onRecord(ctx, run, "")
	if err != nil {
		return ExecResult{}, err
	}
	defer func() { err = ended(res.ExecStatus, err) }()
	begin := func(ctx context.Context, conn *client.Conn, in io.Reader) (wire.RunResult, error) {
		return conn.Terminal(ctx, run, in, at.Stdout)
	}
	return s.atTerminal(ctx, run.ExecID, at, begin)
}

// atTerminal attaches to a terminal for the duration of call.
func (s *Sandbox) atTerminal(ctx context.Context, execID string, at TerminalStreams,
	call func(context.Context, *client.Conn, io.Reader) (wire.RunResult, error)) (ExecResult, error) {
	var answer wire.RunResult
	err := s.call(ctx, false, 0, func(ctx context.Context, conn *client.Conn) (err error) {
		ctx, cancel := context.WithCancel(ctx)
		var sizes sync.WaitGroup
		defer sizes.Wait()
		defer cancel()
		sizes.Go(func() { resizes(ctx, conn, execID, at.Resize) })
		var typed io.Reader
		if at.Stdin != nil {
			typed = endDetaches{at.Stdin}
		}
		answer, err = withInput(ctx, typed, func(ctx context.Context, in io.Reader) (wire.RunResult, error) {
			return call(ctx, conn, in)
		})
		return err
	})
	var refused *wire.Error
	switch {
	case errors.As(err, &refused) && refused.Code == wire.CodeUnsupported:
		return ExecResult{}, fmt.Errorf("%w: terminals are not available in this sandbox: %s",
			backend.ErrUnsupported, sanitize.Message(refused.Message))
	case errors.As(err, &refused):
		return ExecResult{}, err
	case err != nil:
		return ExecResult{ExecStatus: ExecStatus{ExecID: execID}}, err
	}
	return ExecResult{ExecStatus: s.execStatus(answer.ExecStatus)}, nil
}

// resizes forwards sizes until ctx ends. A size may arrive before the guest has created the terminal.
func resizes(ctx context.Context, conn *client.Conn, execID string, sizes <-chan TerminalSize) {
	for {
		select {
		case <-ctx.Done():
			return
		case size, ok := <-sizes:
			if !ok {
				return
			}
			req := wire.TerminalRequest{ExecID: execID, Size: wire.TerminalSize(size)}
			for refusedAs(conn.Resize(ctx, req), wire.CodeNotFound) && bound.Pause(ctx, resizePause) {
			}
		}
	}
}

// endDetaches reads typed input and returns ErrDetached at the end, because terminals have no end of file.
type endDetaches struct{ r io.Reader }

func (e endDetaches) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if errors.Is(err, io.EOF) {
		err = ErrDetached
	}
	return n, err
}
