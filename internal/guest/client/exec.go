package client

import (
	"context"
	"encoding/binary"
	"io"
	"sync"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// Run starts a recorded exec and waits for it as req asks. When ctx ends first, the exec is killed if req.KillOnCancel
// is set and runs on otherwise. Standard input beyond wire.InlineData is streamed; when the exec is handed back running,
// the rest is fed in the background and req.Stdin must not be changed.
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
		go f.feed(&sliceReader{rest})
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
	k, err := c.open(ctx, wire.OpAttach, &req)
	if err != nil {
		return wire.RunResult{}, err
	}
	defer k.end()
	f := newFeeder(k)
	defer f.stop()
	if stdin != nil {
		go f.feed(stdin)
	}
	return k.result(&req, f, stdout, stderr)
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
			f.grant(binary.BigEndian.Uint32(frame.Body))
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
		f.grant(binary.BigEndian.Uint32(frame.Body))
	}
}

// feeder sends standard input within the credit that the guest grants.
type feeder struct {
	k        *call
	mu       sync.Mutex // guards credit and stopped
	more     *sync.Cond
	credit   int64
	stopped  bool
	done     chan struct{} // closed when feed has returned
	doneOnce sync.Once
}

func newFeeder(k *call) *feeder {
	f := &feeder{k: k, credit: wire.StdinCredit, done: make(chan struct{})}
	f.more = sync.NewCond(&f.mu)
	return f
}

func (f *feeder) grant(n uint32) {
	f.mu.Lock()
	f.credit += int64(n)
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

func (f *feeder) putBack(n int) {
	f.mu.Lock()
	f.credit += int64(n)
	f.mu.Unlock()
}

// feed copies r to the guest. Errors of r end the input as its end does; errors of the stream show in the answer.
func (f *feeder) feed(r io.Reader) {
	defer f.doneOnce.Do(func() { close(f.done) })
	buf := make([]byte, wire.FramePrefixSize+wire.MaxData)
	for {
		n := f.take(wire.MaxData)
		if n == 0 {
			return
		}
		m, err := r.Read(buf[wire.FramePrefixSize : wire.FramePrefixSize+n])
		f.putBack(n - m)
		if m > 0 {
			wire.PutDataPrefix(buf, wire.ChanStdin, m)
			if f.k.write(buf[:wire.FramePrefixSize+m]) != nil {
				return
			}
		}
		if err != nil {
			eof, _ := wire.AppendFrame(nil, wire.Frame{Kind: wire.KindEOF, Channel: wire.ChanStdin})
			_ = f.k.write(eof) // the answer says
			return
		}
	}
}

// sliceReader reads a slice without the copies that a bytes.Reader's WriteTo would invite.
type sliceReader struct{ b []byte }

func (s *sliceReader) Read(p []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.b)
	s.b = s.b[n:]
	return n, nil
}

// Read returns recorded output after req.SinceSeq and consumes nothing.
func (c *Conn) Read(ctx context.Context, req wire.ReadRequest) (wire.ReadResult, error) {
	var res wire.ReadResult
	if err := c.roundTrip(ctx, wire.OpRead, &req, &res); err != nil {
		return wire.ReadResult{}, err
	}
	return res, checkRead(&req, &res)
}

// Wait waits for the end of an exec; after req.WaitMillis it returns how it is. The output is within the bounds of the
// request that started the exec, and left out when that was answered after its end or long ago.
func (c *Conn) Wait(ctx context.Context, req wire.WaitRequest) (wire.RunResult, error) {
	var res wire.RunResult
	if err := c.roundTrip(ctx, wire.OpWait, &req, &res); err != nil {
		return wire.RunResult{}, err
	}
	return res, checkResult(&wire.RunRequest{ExecID: req.ExecID, HeadBytes: wire.MaxKeep, TailBytes: wire.MaxKeep}, &res)
}

// Kill ends or signals an exec's tree, and returns the status after that.
func (c *Conn) Kill(ctx context.Context, req wire.KillRequest) (wire.ExecStatus, error) {
	return c.status(ctx, wire.OpKill, &req, req.ExecID)
}

func (c *Conn) status(ctx context.Context, op wire.Op, req any, id string) (wire.ExecStatus, error) {
	var st wire.ExecStatus
	if err := c.roundTrip(ctx, op, req, &st); err != nil {
		return wire.ExecStatus{}, err
	}
	return st, checkStatus(id, &st)
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
	var list wire.ExecList
	if err := c.roundTrip(ctx, op, wire.Empty{}, &list); err != nil {
		return nil, err
	}
	for i := range list.Execs {
		if err := checkStatus(list.Execs[i].ExecID, &list.Execs[i]); err != nil {
			return nil, err
		}
	}
	return list.Execs, nil
}

// Health asks how the guest is.
func (c *Conn) Health(ctx context.Context) (wire.Health, error) {
	var h wire.Health
	err := c.roundTrip(ctx, wire.OpHealth, wire.Empty{}, &h)
	return h, err
}
