package output

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// Sink takes an exec's output. Writes of the two channels are concurrent; each is at most chunkMax bytes that
// stay the caller's. A sink may block, which holds the command back.
type Sink interface {
	write(ch wire.Channel, p []byte)
	// flush hands on what the sink holds back.
	flush()
}

// pipeMax is the most that a pipe holds: what a command can have written before it ended and is not read yet.
const pipeMax = 1 << 20

// Pipes reads a command's two output pipes into a sink. At first nobody reads: most commands are soon over, and then
// Sweep takes what they left in the pipes. A longer command gets a goroutine for each pipe with Start.
type Pipes struct {
	sink Sink
	done chan struct{} // closed when both pipes are at their end
	left atomic.Int32  // pipes not at their end
	ways [2]*outputPipe
}

// outputPipe is one of the pipes.
type outputPipe struct {
	o     *Pipes
	fd    int      // does not block; the pipe's own until start
	f     *os.File // since start
	ch    wire.Channel
	total atomic.Int64
	busy  atomic.Bool  // not waiting at an empty pipe
	after atomic.Int64 // bytes read since the command's end; negative before it
	ended bool         // at its end before start
	held  []byte       // beginning of a character that the last read cut in two; of the one who reads
}

// buffers are shared by all pipes: a buffer is held only while there is something to read.
var buffers = sync.Pool{New: func() any { return new([chunkMax]byte) }}

func getBuffer() *[chunkMax]byte {
	buf, _ := buffers.Get().(*[chunkMax]byte) // nothing else is put there
	return buf
}

// NewPipes reads from two descriptors; a negative one stands for a pipe at its end.
func NewPipes(fds [2]int, sink Sink) *Pipes {
	o := &Pipes{sink: sink, done: make(chan struct{})}
	o.left.Store(2)
	for i, ch := range []wire.Channel{wire.ChanStdout, wire.ChanStderr} {
		o.ways[i] = &outputPipe{o: o, fd: fds[i], ch: ch}
		o.ways[i].after.Store(-1)
		if fds[i] < 0 {
			o.ways[i].ended = true
			o.ways[i].finish()
		}
	}
	return o
}

// Totals returns how many bytes were read.
func (o *Pipes) Totals() (stdout, stderr int64) {
	return o.ways[0].total.Load(), o.ways[1].total.Load()
}

// Sweep takes what is in the pipes and reports whether both are at their end. Not after Start.
func (o *Pipes) Sweep() bool {
	for _, w := range o.ways {
		for !w.ended {
			buf := getBuffer()
			n, err := w.fill(w.fd, buf)
			if n > 0 {
				w.take(buf[:n])
			}
			buffers.Put(buf)
			if errors.Is(err, unix.EAGAIN) || w.total.Load() > pipeMax {
				break // somebody else holds the pipe
			}
			if n <= 0 {
				w.ended = true
				_ = unix.Close(w.fd) // only read from
				w.finish()
			}
		}
	}
	return o.left.Load() == 0
}

// Start reads the pipes from now on, as long as they are open.
func (o *Pipes) Start() {
	for _, w := range o.ways {
		if !w.ended {
			w.f = os.NewFile(uintptr(w.fd), "pipe")
			go w.pump()
		}
	}
}

func (w *outputPipe) take(p []byte) {
	w.total.Add(int64(len(p)))
	if w.after.Load() >= 0 {
		w.after.Add(int64(len(p)))
	}
	w.o.sink.write(w.ch, p)
}

// Note adds a line of the guest's to the standard error, which is at its end.
func (o *Pipes) Note(text string) {
	o.ways[1].take([]byte(text))
	o.sink.flush()
}

func (w *outputPipe) finish() {
	if w.o.left.Add(-1) == 0 {
		close(w.o.done)
	}
}

// fill reads once without waiting. A character that only the size of buf cuts in two is left for the next read, so that
// text stays text in numbered chunks.
func (w *outputPipe) fill(fd int, buf *[chunkMax]byte) (int, error) {
	k := copy(buf[:], w.held)
	w.held = w.held[:0]
	n, err := readNow(fd, buf[k:])
	if n <= 0 && k > 0 {
		return k, nil // the rest of the character did not come
	}
	if n <= 0 {
		return n, err
	}
	n += k
	if n == len(buf) {
		cut := partialRune(buf[:])
		n -= cut
		w.held = append(w.held, buf[n:n+cut]...)
	}
	return n, nil
}

// partialRune returns the length of the incomplete character at the end of p; 0 when there is none.
func partialRune(p []byte) int {
	for i := 1; i < utf8.UTFMax && i <= len(p); i++ {
		if utf8.RuneStart(p[len(p)-i]) {
			if utf8.FullRune(p[len(p)-i:]) {
				return 0
			}
			return i
		}
	}
	return 0
}

// readNow is one read that does not wait.
func readNow(fd int, p []byte) (int, error) {
	for {
		n, err := unix.Read(fd, p)
		if err != unix.EINTR {
			return n, err
		}
	}
}

// pump reads the pipe to its end.
func (w *outputPipe) pump() {
	defer func() {
		_ = w.f.Close()     // only read from
		w.busy.Store(false) // Drain may wait for the other pipe
		w.finish()
	}()
	raw, err := w.f.SyscallConn()
	if err != nil {
		return
	}
	for {
		buf, n, err := w.read(raw)
		if n > 0 {
			w.take(buf[:n])
		}
		if buf != nil {
			buffers.Put(buf)
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
		buf = getBuffer()
		if n, err = w.fill(int(fd), buf); errors.Is(err, unix.EAGAIN) {
			buffers.Put(buf)
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

// Drain waits for the ends of the pipes after the command has ended, at most for d, but as long as a sink is still
// busy with what was written before. It reports whether somebody else still holds a pipe.
func (o *Pipes) Drain(d time.Duration) (leaked bool) {
	for _, w := range o.ways {
		w.after.Store(0)
	}
	late := time.After(d)
	for {
		select {
		case <-o.done:
			o.sink.flush()
			return false
		case <-late:
			if o.settled() {
				o.sink.flush()
				return true
			}
			late = time.After(10 * time.Millisecond)
		}
	}
}

// settled reports whether all was handed on that the command itself wrote. On a busy machine the reader of a pipe may
// not have been woken yet, so it is the pipe that is asked.
func (o *Pipes) settled() bool {
	for _, w := range o.ways {
		if (w.busy.Load() || w.waiting()) && w.after.Load() < pipeMax {
			return false
		}
	}
	return true
}

// waiting reports whether something lies in the pipe. The kernel hands a terminal's output on with a delay, unless it
// is asked in this way.
func (w *outputPipe) waiting() (is bool) {
	if w.f == nil {
		return false // swept to its end
	}
	raw, err := w.f.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) { // closed: nothing waits
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		is = err == nil && n == 1 && p[0].Revents&unix.POLLIN != 0
	})
	return is
}
