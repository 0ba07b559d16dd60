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

// Run starts a recorded exec and waits for it as req asks. When ctx ends first, the exec is killed if req.KillOnCancel
// is set and runs on otherwise. Standard input beyond wire.InlineData is streamed; when the exec is handed back
// running, the rest is fed in the background and req.Stdin must not be changed.
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
	k.stop() // the answer is here: the end of ctx no longer matters to the rest of the input
	go func() {
		defer k.end()
		k.credits(f)
	}()
	return res, nil
}

// Attach starts an exec whose output goes live to stdout and stderr (nil discards it), all of it, at the pace of their
// writers. Standard input comes from stdin (nil means none). When ctx ends first the exec's whole tree is killed.
// Attach may return while a Read of stdin is still under way.
func (c *Conn) Attach(ctx context.Context, req wire.RunRequest, stdin io.Reader, stdout, stderr io.Writer) (wire.RunResult, error) {
	req.StdinStream = stdin != nil
	return c.live(ctx, wire.OpAttach, &req, &req, stdin, stdout, stderr)
}

// Terminal starts an exec on a terminal, which req.Terminal describes, and stays there until it ends. Its input comes
// from stdin (nil means none); its output goes live to stdout, all of it, at the pace of that writer. When ctx ends
// first, or stdin does, the exec runs on; the guest ends it when nobody was at its terminal for req.TimeoutMillis.
// Terminal may return while a Read of stdin is still under way. When somebody joins meanwhile it is ErrTakenOver.
func (c *Conn) Terminal(ctx context.Context, req wire.RunRequest, stdin io.Reader, stdout io.Writer) (wire.RunResult, error) {
	return c.live(ctx, wire.OpTerminal, &req, &wire.RunRequest{ExecID: req.ExecID}, stdin, stdout, nil)
}

// Join goes to the terminal of an exec as Terminal does, with a part of what was written there before.
func (c *Conn) Join(ctx context.Context, req wire.TerminalRequest, stdin io.Reader, stdout io.Writer) (wire.RunResult, error) {
	return c.live(ctx, wire.OpJoin, &req, &wire.RunRequest{ExecID: req.ExecID}, stdin, stdout, nil)
}

// Resize sets the size of an exec's terminal.
func (c *Conn) Resize(ctx context.Context, req wire.TerminalRequest) error {
	return c.roundTrip(ctx, wire.OpResize, &req, new(wire.Empty))
}

// live begins a request whose output is live, and stays until its answer, which must be one to want.
func (c *Conn) live(ctx context.Context, op wire.Op, req any, want *wire.RunRequest, stdin io.Reader, stdout, stderr io.Writer) (wire.RunResult, error) {
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

// result reads frames up to the answer.
func (k *call) result(req *wire.RunRequest, f *feeder, stdout, stderr io.Writer) (wire.RunResult, error) {
	var res wire.RunResult
	var buf []byte
	for {
		frame, err := k.read(buf)
		if err != nil {
			return res, err
		}
		switch {
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

// credits serves the feeder after the answer, until the guest or the feeder is done.
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

// feeder sends standard input within the credit that the guest grants.
type feeder struct {
	k       *call
	mu      sync.Mutex // guards credit and stopped
	more    *sync.Cond
	credit  int64
	stopped bool
	done    chan struct{} // closed when feed has returned
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

// take waits for credit and returns at most max of it; 0 means stopped.
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

// feed copies r to the guest. Errors of r end the input as its end does; errors of the stream show in the answer.
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
			_ = f.k.write(wire.AppendEOF(nil, wire.ChanStdin)) // the answer says
			return
		}
	}
}

// Read returns recorded output after req.SinceSeq and consumes nothing.
func (c *Conn) Read(ctx context.Context, req wire.ReadRequest) (wire.ReadResult, error) {
	return ask(ctx, c, wire.OpRead, &req, func(res *wire.ReadResult) error { return checkRead(&req, res) })
}

// Wait waits for the end of an exec; after req.WaitMillis it returns how it is. The output is within the bounds of the
// request that started the exec, and left out when that ended long ago.
func (c *Conn) Wait(ctx context.Context, req wire.WaitRequest) (wire.RunResult, error) {
	most := &wire.RunRequest{ExecID: req.ExecID, HeadBytes: wire.MaxKeep, TailBytes: wire.MaxKeep}
	return ask(ctx, c, wire.OpWait, &req, func(res *wire.RunResult) error { return checkResult(most, res) })
}

// Kill ends or signals an exec's tree, and returns the status after that.
func (c *Conn) Kill(ctx context.Context, req wire.KillRequest) (wire.ExecStatus, error) {
	return ask(ctx, c, wire.OpKill, &req, func(st *wire.ExecStatus) error { return checkStatus(req.ExecID, st) })
}

// Extend moves the deadline of a running exec, and returns the status after that.
func (c *Conn) Extend(ctx context.Context, req wire.DeadlineRequest) (wire.ExecStatus, error) {
	return ask(ctx, c, wire.OpDeadline, &req, func(st *wire.ExecStatus) error { return checkStatus(req.ExecID, st) })
}

// WriteStdin writes to an exec that was started with StdinOpen. It returns when the exec's pipe has taken the bytes.
// Data beyond wire.MaxStdinWrite goes in several requests. An exec that closed its input swallows them.
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

// Execs lists the execs that the guest knows, oldest first.
func (c *Conn) Execs(ctx context.Context) ([]wire.ExecStatus, error) {
	return c.list(ctx, wire.OpExecs)
}

// KillAll ends every exec and what ended ones left behind, and returns the execs that ran.
func (c *Conn) KillAll(ctx context.Context) ([]wire.ExecStatus, error) {
	return c.list(ctx, wire.OpKillAll)
}

func (c *Conn) list(ctx context.Context, op wire.Op) ([]wire.ExecStatus, error) {
	list, err := ask(ctx, c, op, wire.Empty{}, checkExecs)
	return list.Execs, err
}

// Health asks how the guest is.
func (c *Conn) Health(ctx context.Context) (wire.Health, error) {
	return ask(ctx, c, wire.OpHealth, wire.Empty{}, func(*wire.Health) error { return nil })
}

// Claim hands a pooled sandbox to a session.
func (c *Conn) Claim(ctx context.Context, req wire.ClaimRequest) error {
	return c.roundTrip(ctx, wire.OpClaim, &req, &wire.Empty{})
}
