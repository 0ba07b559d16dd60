package client

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Run starts a recorded command and waits for it as specified by req. If ctx ends first, the command is killed if
// req.KillOnCancel is set, and otherwise keeps running. If Run returns while the command is running, a goroutine sends
// the rest of the standard input, and the caller must not change req.Stdin. Standard input larger than wire.InlineData
// is streamed.
func (c *Conn) Run(ctx context.Context, req wire.RunRequest) (wire.RunResult, error) {
	var rest []byte
	if len(req.Stdin) > wire.InlineData {
		rest, req.Stdin, req.StdinStream = req.Stdin, nil, true
	}
	k, err := c.open(ctx, wire.OpRun, &req)
	if err != nil {
		return wire.RunResult{}, err
	}
	f := newFeeder(k)
	if rest != nil {
		go f.feed(bytes.NewReader(rest))
	}
	res, err := k.result(&req, f, nil, nil)
	if err != nil || rest == nil || res.State != wire.ExecRunning {
		f.stop()
		k.end()
		return res, err
	}
	k.stop() // the response has arrived, so ctx no longer applies to the input
	go func() {
		defer k.end()
		k.credits(f)
	}()
	return res, nil
}

// Attach starts a command and copies the complete output to stdout and stderr while the command runs. A nil writer
// discards the output. A slow writer blocks the command. Standard input comes from stdin; nil means no input. If ctx
// ends first, the command and all child processes are killed. Attach may return while a Read of stdin is in progress.
func (c *Conn) Attach(
	ctx context.Context, req wire.RunRequest, stdin io.Reader, stdout, stderr io.Writer,
) (wire.RunResult, error) {
	req.StdinStream = stdin != nil
	return c.live(ctx, wire.OpAttach, &req, &req, stdin, stdout, stderr)
}

// Terminal starts a command on a terminal with the size req.Terminal and stays connected until the command ends. The
// input comes from stdin; nil means no input. The complete output is copied to stdout while the command runs, and a
// slow writer blocks it. If ctx or stdin ends first, the command keeps running. The guest agent kills it when no host
// was connected to the terminal for req.TimeoutMillis. Terminal may return while a Read of stdin is in progress. If
// another host joins the terminal, Terminal returns ErrTakenOver.
func (c *Conn) Terminal(
	ctx context.Context, req wire.RunRequest, stdin io.Reader, stdout io.Writer,
) (wire.RunResult, error) {
	return c.live(ctx, wire.OpTerminal, &req, &wire.RunRequest{ExecID: req.ExecID}, stdin, stdout, nil)
}

// Join connects to the terminal of a command, like Terminal. It first shows a part of the earlier output.
func (c *Conn) Join(
	ctx context.Context, req wire.TerminalRequest, stdin io.Reader, stdout io.Writer,
) (wire.RunResult, error) {
	return c.live(ctx, wire.OpJoin, &req, &wire.RunRequest{ExecID: req.ExecID}, stdin, stdout, nil)
}

// Resize sets the size of a command's terminal.
func (c *Conn) Resize(ctx context.Context, req wire.TerminalRequest) error {
	return c.roundTrip(ctx, wire.OpResize, &req, new(wire.Empty))
}

// live sends a request with live output and waits for the response, which must match want.
func (c *Conn) live(
	ctx context.Context, op wire.Op, req any, want *wire.RunRequest, stdin io.Reader, stdout, stderr io.Writer,
) (wire.RunResult, error) {
	k, err := c.open(ctx, op, req)
	if err != nil {
		return wire.RunResult{}, err
	}
	defer k.end()
	f := newFeeder(k)
	defer f.stop()
	if stdin != nil {
		go f.feed(stdin)
	}
	res, err := k.result(want, f, stdout, stderr)
	if errors.Is(err, errUnanswered) && op != wire.OpAttach {
		err = ErrTakenOver
	}
	return res, err
}

// result reads frames until the response.
func (k *call) result(req *wire.RunRequest, f *feeder, stdout, stderr io.Writer) (wire.RunResult, error) {
	var res wire.RunResult
	var buf []byte
	for {
		frame, err := k.read(buf)
		switch {
		case err != nil:
		case frame.Kind == wire.KindCredit:
			f.grant(int64(binary.BigEndian.Uint32(frame.Body)))
		case frame.Kind == wire.KindData && frame.Channel == wire.ChanStdout && stdout != nil:
			_, err = stdout.Write(frame.Body)
		case frame.Kind == wire.KindData && frame.Channel == wire.ChanStderr && stderr != nil:
			_, err = stderr.Write(frame.Body)
		case frame.Kind == wire.KindData:
		default:
			if err := decodeAnswer(frame, &res); err != nil {
				return res, err
			}
			return res, checkResult(req, &res)
		}
		if err != nil {
			return res, err
		}
		if cap(frame.Body) > cap(buf) {
			buf = frame.Body[:0]
		}
	}
}

// credits passes credit to the feeder after the response, until the guest agent or the feeder is done.
func (k *call) credits(f *feeder) {
	defer f.stop()
	go func() { <-f.done; k.abort() }()
	for {
		frame, err := k.read(nil)
		if err != nil || frame.Kind != wire.KindCredit {
			return
		}
		f.grant(int64(binary.BigEndian.Uint32(frame.Body)))
	}
}

// feeder sends standard input within the guest agent's credit.
type feeder struct {
	k       *call
	mu      sync.Mutex // guards credit and stopped
	more    *sync.Cond
	credit  int64
	stopped bool
	done    chan struct{} // closed when feed returns
}

func newFeeder(k *call) *feeder {
	f := &feeder{k: k, credit: wire.StdinCredit, done: make(chan struct{})}
	f.more = sync.NewCond(&f.mu)
	return f
}

func (f *feeder) grant(n int64) {
	f.mu.Lock()
	f.credit += n
	f.mu.Unlock()
	f.more.Signal()
}

func (f *feeder) stop() {
	f.mu.Lock()
	f.stopped = true
	f.mu.Unlock()
	f.more.Signal()
}

// take waits for credit and returns at most max of it. It returns 0 if the feeder was stopped.
func (f *feeder) take(max int64) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.credit <= 0 && !f.stopped {
		f.more.Wait()
	}
	if f.stopped {
		return 0
	}
	n := min(f.credit, max)
	f.credit -= n
	return int(n)
}

// feed copies r to the guest agent. An error of r ends the input, like the end of r. Errors of the stream are reported
// by the response.
func (f *feeder) feed(r io.Reader) {
	defer close(f.done)
	buf := make([]byte, wire.FramePrefixSize+wire.MaxData)
	for {
		n := f.take(wire.MaxData)
		if n == 0 {
			return
		}
		m, err := r.Read(buf[wire.FramePrefixSize : wire.FramePrefixSize+n])
		f.grant(int64(n - m))
		if m > 0 {
			wire.PutDataPrefix(buf, wire.ChanStdin, m)
			if f.k.write(buf[:wire.FramePrefixSize+m]) != nil {
				return
			}
		}
		if err != nil {
			_ = f.k.write(wire.AppendEOF(nil, wire.ChanStdin)) // the response reports the error
			return
		}
	}
}

// Read returns recorded output after req.SinceSeq. The output stays available.
func (c *Conn) Read(ctx context.Context, req wire.ReadRequest) (wire.ReadResult, error) {
	return ask(ctx, c, wire.OpRead, &req, func(res *wire.ReadResult) error { return checkRead(&req, res) })
}

// Wait waits for a command to exit. After req.WaitMillis, it returns the current status. The output has the limits of
// the command's request. If the command exited long ago, the output is omitted.
func (c *Conn) Wait(ctx context.Context, req wire.WaitRequest) (wire.RunResult, error) {
	most := &wire.RunRequest{ExecID: req.ExecID, HeadBytes: wire.MaxKeep, TailBytes: wire.MaxKeep}
	return ask(ctx, c, wire.OpWait, &req, func(res *wire.RunResult) error { return checkResult(most, res) })
}

// Kill kills or signals a command's process tree and returns the resulting status.
func (c *Conn) Kill(ctx context.Context, req wire.KillRequest) (wire.ExecStatus, error) {
	return ask(ctx, c, wire.OpKill, &req, func(st *wire.ExecStatus) error { return checkStatus(req.ExecID, st) })
}

// Extend changes the deadline of a running command and returns the resulting status.
func (c *Conn) Extend(ctx context.Context, req wire.DeadlineRequest) (wire.ExecStatus, error) {
	return ask(ctx, c, wire.OpDeadline, &req, func(st *wire.ExecStatus) error { return checkStatus(req.ExecID, st) })
}

// WriteStdin writes to the standard input of a command started with StdinOpen. It returns when the command's pipe has
// accepted the data. Data larger than wire.MaxStdinWrite is sent in several requests. If the command has closed the
// input, the data is discarded.
func (c *Conn) WriteStdin(ctx context.Context, req wire.StdinRequest) error {
	for len(req.Data) > wire.MaxStdinWrite {
		part := wire.StdinRequest{ExecID: req.ExecID, Data: req.Data[:wire.MaxStdinWrite]}
		if err := c.roundTrip(ctx, wire.OpStdin, &part, new(wire.Empty)); err != nil {
			return err
		}
		req.Data = req.Data[wire.MaxStdinWrite:]
	}
	return c.roundTrip(ctx, wire.OpStdin, &req, new(wire.Empty))
}

// Execs lists the guest agent's known commands, oldest first.
func (c *Conn) Execs(ctx context.Context) ([]wire.ExecStatus, error) {
	return c.list(ctx, wire.OpExecs)
}

// KillAll kills every command and remaining processes of exited commands. It returns the previously running commands.
func (c *Conn) KillAll(ctx context.Context) ([]wire.ExecStatus, error) {
	return c.list(ctx, wire.OpKillAll)
}

func (c *Conn) list(ctx context.Context, op wire.Op) ([]wire.ExecStatus, error) {
	list, err := ask(ctx, c, op, wire.Empty{}, checkExecs)
	return list.Execs, err
}

// Health returns the state of the guest agent.
func (c *Conn) Health(ctx context.Context) (wire.Health, error) {
	return ask(ctx, c, wire.OpHealth, wire.Empty{}, func(*wire.Health) error { return nil })
}

// Claim assigns a pooled sandbox to a session.
func (c *Conn) Claim(ctx context.Context, req wire.ClaimRequest) error {
	return c.roundTrip(ctx, wire.OpClaim, &req, &wire.Empty{})
}
