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

// Sink receives a command's output. Writes to the two channels are concurrent. Each write has at most chunkMax bytes,
// and the sink must not keep the slice. A sink may block, which blocks the command.
type Sink interface {
	write(ch wire.Channel, p []byte)
	// flush forwards the data held back by the sink.
	flush()
}

// pipeMax is the maximum capacity of a pipe. This is the maximum amount of unread data when a command exits.
const pipeMax = 1 << 20

// Pipes reads a command's two output pipes into a sink. At first, no goroutine reads, because most commands exit
// quickly. Sweep then reads the data in the pipes. For a longer command, Start starts a goroutine for each pipe.
type Pipes struct {
	sink Sink
	done chan struct{} // closed when both pipes have ended
	left atomic.Int32  // number of open pipes
	ways [2]*outputPipe
}

// outputPipe is one of the pipes.
type outputPipe struct {
	o     *Pipes
	fd    int      // non-blocking; owned by the pipe until start
	f     *os.File // set by start
	ch    wire.Channel
	total atomic.Int64
	busy  atomic.Bool  // false while waiting at an empty pipe
	after atomic.Int64 // bytes read since the command exited; negative before
	ended bool         // the pipe ended before start
	held  []byte       // beginning of a character split by the last read; used by the reader only
}

// buffers is shared by all pipes. A buffer is in use only while data is available.
var buffers = sync.Pool{New: func() any { return new([chunkMax]byte) }}

func getBuffer() *[chunkMax]byte {
	buf, _ := buffers.Get().(*[chunkMax]byte) // the pool contains only this type
	return buf
}

// NewPipes returns Pipes for two descriptors. A negative descriptor means an ended pipe.
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

// Totals returns the number of bytes read.
func (o *Pipes) Totals() (stdout, stderr int64) {
	return o.ways[0].total.Load(), o.ways[1].total.Load()
}

// Sweep reads the data in the pipes and reports whether both have ended. It must not be called after Start.
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
				break // another process holds the pipe
			}
			if n <= 0 {
				w.ended = true
				_ = unix.Close(w.fd) // only used for reading
				w.finish()
			}
		}
	}
	return o.left.Load() == 0
}

// Start starts reading the pipes until they end.
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

// Note adds a line of the guest agent to the standard error, which must have ended.
func (o *Pipes) Note(text string) {
	o.ways[1].take([]byte(text))
	o.sink.flush()
}

func (w *outputPipe) finish() {
	if w.o.left.Add(-1) == 0 {
		close(w.o.done)
	}
}

// fill reads once and does not wait. If the size of buf splits a character, fill keeps the character's beginning for
// the next read, to keep numbered chunks valid UTF-8.
func (w *outputPipe) fill(fd int, buf *[chunkMax]byte) (int, error) {
	k := copy(buf[:], w.held)
	w.held = w.held[:0]
	n, err := readNow(fd, buf[k:])
	if n <= 0 && k > 0 {
		return k, nil // the rest of the character is missing
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

// partialRune returns the length of the incomplete character at the end of p, or 0.
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

// readNow reads once and does not wait.
func readNow(fd int, p []byte) (int, error) {
	for {
		n, err := unix.Read(fd, p)
		if err != unix.EINTR {
			return n, err
		}
	}
}

// pump reads the pipe until it ends.
func (w *outputPipe) pump() {
	defer func() {
		_ = w.f.Close()     // only used for reading
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

// read waits for output and reads it into a buffer from the pool.
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

// Drain waits for the pipes to end after the command has exited. It waits for at most d, but longer while a sink still
// processes earlier output. It reports whether another process still holds a pipe.
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

// settled reports whether all output of the command itself was forwarded. On a busy host, the reader of a pipe may not
// have been woken up yet, so settled checks the pipe.
func (o *Pipes) settled() bool {
	for _, w := range o.ways {
		if (w.busy.Load() || w.waiting()) && w.after.Load() < pipeMax {
			return false
		}
	}
	return true
}

// waiting reports whether the pipe contains data. The kernel delivers the output of a terminal with a delay, unless it
// is polled.
func (w *outputPipe) waiting() (is bool) {
	if w.f == nil {
		return false // already read to the end
	}
	raw, err := w.f.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) { // if closed, no data is waiting
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		is = err == nil && n == 1 && p[0].Revents&unix.POLLIN != 0
	})
	return is
}
