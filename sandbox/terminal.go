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
	// ErrDetached: one left a terminal, whose command goes on.
	ErrDetached = errors.New("detached from the terminal; its command is still running")
	// ErrTakenOver: somebody else joined the terminal that one was at. Its command goes on, and one may join again.
	ErrTakenOver = errors.New("detached from the terminal: another client took it over; its command is still running")
)

// resizePause is how long a size waits for a terminal that is still being made.
const resizePause = 20 * time.Millisecond

// TerminalSize is the size of a terminal in characters. Zeros are a size that is not known.
type TerminalSize struct{ Rows, Cols uint16 }

// TerminalRequest is what to run on a terminal.
type TerminalRequest struct {
	// Argv is delivered verbatim. Without it a shell is run: the sandbox's $SHELL, else the first there is of bash, zsh,
	// ash and sh.
	Argv []string
	Dir  string            // empty is the work directory; a relative one lies below it
	Env  map[string]string // over the sandbox's and the image's environment; TERM is the caller's to give
	Size TerminalSize
	// Unattended is how long the command goes on while nobody is at its terminal; MinExecTimeout to MaxExecTimeout. Zero
	// is MaxExecTimeout.
	Unattended time.Duration
}

// TerminalStreams are one's end of a terminal. The bytes are passed on as they are, in both directions.
type TerminalStreams struct {
	Stdin  io.Reader           // what is typed; its end detaches, nil types nothing
	Stdout io.Writer           // what is shown; nil discards it. A slow one slows the command down.
	Resize <-chan TerminalSize // sizes to come; may be nil
}

// Terminal runs a command on a terminal of its own and stays there until it ends. Leaving earlier does not end it: when
// ctx ends, when Stdin ends, which is ErrDetached, when Stdin or Stdout fails, whose error is returned, or when
// somebody else joins, which is ErrTakenOver, the command goes on, can be joined with Command.Attach, and its output is
// recorded. It ends when it was left alone for as long as req.Unattended.
//
// The result names the command also when there is an error, unless it could not be started. Terminal may return while a
// Read of Stdin is still under way. A guest that has no terminals is backend.ErrUnsupported.
func (s *Sandbox) Terminal(ctx context.Context, req TerminalRequest, at TerminalStreams) (res ExecResult, err error) {
	ctx, span := s.start(ctx, telemetry.SpanTerminal)
	defer func() { s.end(span, "Terminal", &err) }()
	argv := req.Argv
	if len(argv) == 0 {
		argv = []string{"shell"} // stands for the one that the guest finds
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
	return s.atTerminal(ctx, run.ExecID, at, func(ctx context.Context, conn *client.Conn, in io.Reader) (wire.RunResult, error) {
		return conn.Terminal(ctx, run, in, at.Stdout)
	})
}

// atTerminal keeps one at a terminal for the length of call.
func (s *Sandbox) atTerminal(ctx context.Context, execID string, at TerminalStreams,
	call func(context.Context, *client.Conn, io.Reader) (wire.RunResult, error)) (ExecResult, error) {
	var answer wire.RunResult
	err := s.call(ctx, false, func(ctx context.Context, conn *client.Conn) (err error) {
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
		return ExecResult{}, fmt.Errorf("%w: terminals are not available in this sandbox: %s", backend.ErrUnsupported, sanitize.Message(refused.Message))
	case errors.As(err, &refused):
		return ExecResult{}, err
	case err != nil:
		return ExecResult{ExecStatus: ExecStatus{ExecID: execID}}, err
	}
	return ExecResult{ExecStatus: s.execStatus(answer.ExecStatus)}, nil
}

// resizes passes sizes on until ctx ends. A size may be known before the guest knows the terminal.
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

// endDetaches reads what is typed. There is no end of it: at a terminal a character stands for that.
type endDetaches struct{ r io.Reader }

func (e endDetaches) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if errors.Is(err, io.EOF) {
		err = ErrDetached
	}
	return n, err
}
