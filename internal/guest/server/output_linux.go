package server

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// outputSink takes an exec's output. Writes of the two channels are concurrent; each is at most chunkMax bytes that
// stay the caller's. A sink may block, which holds the command back.
type outputSink interface {
	write(ch wire.Channel, p []byte)
	// flush hands on what the sink holds back.
	flush()
}

// pipeMax is the most that a pipe holds: what a command can have written before it ended and is not read yet.
const pipeMax = 1 << 20

// output reads a command's two output pipes into a sink.
type output struct {
	sink outputSink
	bufs *sync.Pool
	done chan struct{} // closed when both pipes are at their end
	left atomic.Int32  // pipes not at their end
	ways [2]*outputPipe
}

// outputPipe is one of the pipes.
type outputPipe struct {
	o     *output
	f     *os.File
	ch    wire.Channel
	total atomic.Int64
	busy  atomic.Bool  // not waiting at an empty pipe
	after atomic.Int64 // bytes read since the command's end; negative before it
}

// readBuffers are shared by all pipes: a buffer is held only while there is something to read.
func readBuffers() *sync.Pool {
	return &sync.Pool{New: func() any { return new([chunkMax]byte) }}
}

func newOutput(files [2]*os.File, sink outputSink, bufs *sync.Pool) *output {
	o := &output{sink: sink, bufs: bufs, done: make(chan struct{})}
	o.left.Store(2)
	for i, ch := range []wire.Channel{wire.ChanStdout, wire.ChanStderr} {
		o.ways[i] = &outputPipe{o: o, f: files[i], ch: ch}
		o.ways[i].after.Store(-1)
		go o.ways[i].pump()
	}
	return o
}

func (o *output) totals() (stdout, stderr int64) {
	return o.ways[0].total.Load(), o.ways[1].total.Load()
}

// pump reads the pipe to its end.
func (w *outputPipe) pump() {
	defer func() {
		_ = w.f.Close() // only read from
		if w.o.left.Add(-1) == 0 {
			close(w.o.done)
		}
	}()
	raw, err := w.f.SyscallConn()
	if err != nil {
		return
	}
	for {
		buf, n, err := w.read(raw)
		if n > 0 {
			w.total.Add(int64(n))
			if w.after.Load() >= 0 {
				w.after.Add(int64(n))
			}
			w.o.sink.write(w.ch, buf[:n])
		}
		if buf != nil {
			w.o.bufs.Put(buf)
		}
		if err != nil {
			return
		}
	}
}

// read waits for output and reads it into a buffer of the pool.
func (w *outputPipe) read(raw syscall.RawConn) (buf *[chunkMax]byte, n int, err error) {
	werr := raw.Read(func(fd uintptr) bool {
		w.busy.Store(true)
		buf = w.o.bufs.Get().(*[chunkMax]byte)
		for {
			n, err = unix.Read(int(fd), buf[:])
			if err != unix.EINTR {
				break
			}
		}
		if err == unix.EAGAIN {
			w.o.bufs.Put(buf)
			buf, n, err = nil, 0, nil
			w.busy.Store(false)
			return false
		}
		return true
	})
	switch {
	case werr != nil:
		return buf, 0, werr
	case err != nil:
		return buf, 0, err
	case n <= 0:
		return buf, 0, io.EOF
	}
	return buf, n, nil
}

// drain waits for the ends of the pipes after the command has ended, at most for d, but as long as a sink is still
// busy with what was written before. It tells whether somebody else still holds a pipe.
func (o *output) drain(d time.Duration) (leaked bool) {
	for _, w := range o.ways {
		w.after.Store(0)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	for {
		select {
		case <-o.done:
			o.sink.flush()
			return false
		case <-t.C:
			if o.settled() {
				o.sink.flush()
				return true
			}
			t.Reset(10 * time.Millisecond)
		}
	}
}

// settled tells whether all was handed on that the command itself wrote.
func (o *output) settled() bool {
	for _, w := range o.ways {
		if w.busy.Load() && w.after.Load() < pipeMax {
			return false
		}
	}
	return true
}

// pipeSet collects the ends of the pipes of a command that is being started.
type pipeSet struct {
	child []int
	own   []*os.File
}

// input makes a pipe for the child to read from.
func (p *pipeSet) input() (int, *os.File, error) { return p.pipe(0) }

// output makes a pipe for the child to write to.
func (p *pipeSet) output() (int, *os.File, error) { return p.pipe(1) }

func (p *pipeSet) pipe(childEnd int) (int, *os.File, error) {
	var fd [2]int
	if err := unix.Pipe2(fd[:], unix.O_CLOEXEC); err != nil {
		return -1, nil, err
	}
	p.child = append(p.child, fd[childEnd])
	mine := fd[1-childEnd]
	if err := unix.SetNonblock(mine, true); err != nil {
		return -1, nil, errors.Join(err, unix.Close(mine))
	}
	f := os.NewFile(uintptr(mine), "pipe")
	p.own = append(p.own, f)
	return fd[childEnd], f, nil
}

func (p *pipeSet) closeChildEnds() {
	for _, fd := range p.child {
		_ = unix.Close(fd) // the child has its own
	}
}

func (p *pipeSet) closeOwnEnds() {
	for _, f := range p.own {
		_ = f.Close() // nothing was written
	}
}
