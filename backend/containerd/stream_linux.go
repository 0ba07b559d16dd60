package containerd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/guest/client"
)

const (
	// turnWait is how long the holder of a stream may take to let go of it. One that does not is stopped, or stuck,
	// and reads nothing meanwhile.
	turnWait  = 3 * time.Second
	turnRetry = 2 * time.Millisecond
	// askAgain is after how many retries the holder is asked once more.
	askAgain = 25

	fifoBytes = mib // what a FIFO holds; the kernel's own default is 64 KiB
)

// stream is a sandbox's own stream: the FIFOs that the shim reads and writes. Unlike an engine's attach, two readers of
// a FIFO would each get a part of what comes, so there may be only one: it holds a lock on a third FIFO, the turn, and
// lets go of everything as soon as somebody writes to that, in this process or another. The kernel frees the lock of a
// process that died.
type stream struct {
	in, out *os.File
	turn    *os.File
	taken   atomic.Bool

	closing sync.Once
	err     error // of closing
}

// openStream takes the turn and opens the FIFOs. ErrLost: nobody is at the other end.
func openStream(ctx context.Context, dir stateDir, id string) (*stream, error) {
	turn, err := takeTurn(ctx, dir.file(id, fifoTurn))
	if err != nil {
		return nil, err
	}
	s := &stream{turn: turn}
	if s.out, err = os.OpenFile(dir.file(id, fifoOut), os.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
		s.in, err = openWriter(ctx, dir.file(id, fifoIn))
	}
	if err != nil {
		return nil, errors.Join(lostFIFO(err), s.Close())
	}
	for _, f := range []*os.File{s.in, s.out} {
		enlarge(f)
	}
	go s.watch() // ends with Close
	return s, nil
}

// openWriter opens a FIFO to write, which fails as long as nobody reads; a shim that was just started opens its end beside
// its answer.
func openWriter(ctx context.Context, path string) (*os.File, error) {
	for deadline := time.Now().Add(turnWait); ; {
		f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if !errors.Is(err, unix.ENXIO) || time.Now().After(deadline) || !pause(ctx, turnRetry) {
			return f, err
		}
	}
}

// pause waits for d, or until ctx ends and then tells false.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// lostFIFO says what it means that a FIFO cannot be opened.
func lostFIFO(err error) error {
	if errors.Is(err, unix.ENXIO) || errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("containerd: nobody is at the other end of the sandbox's stream: %w", backend.ErrLost)
	}
	return stateError("open FIFOs", err)
}

// enlarge makes room in a FIFO; the default does as well, only slower.
func enlarge(f *os.File) {
	if c, err := f.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, fifoBytes) })
	}
}

// takeTurn gets the lock, if need be from its holder.
func takeTurn(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, lostFIFO(err)
	}
	deadline := time.Now().Add(turnWait)
	for i := 0; ; i++ {
		err := flock(f)
		if err == nil || time.Now().After(deadline) {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return nil, joinClose(stateError("take over the stream", err), f)
		}
		if i%askAgain == 0 {
			if _, err := f.Write([]byte{1}); err != nil {
				return nil, joinClose(stateError("take over the stream", err), f)
			}
		}
		if !pause(ctx, turnRetry) {
			return nil, joinClose(ctx.Err(), f)
		}
	}
}

func flock(f *os.File) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var locked error
	err = c.Control(func(fd uintptr) {
		locked = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB)
		if locked == nil { // what was asked of earlier holders is not asked of this one
			var buf [4096]byte
			_, _ = unix.Read(int(fd), buf[:])
		}
	})
	return errors.Join(err, locked)
}

// watch lets go when somebody else asks for the stream.
func (s *stream) watch() {
	var b [1]byte
	if n, _ := s.turn.Read(b[:]); n > 0 {
		s.taken.Store(true)
		_ = s.Close() // whoever asked has no use for the error
	}
}

// Read gives the guest's output.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.out.Read(p)
	return n, s.explain(err)
}

// Write sends to the guest.
func (s *stream) Write(p []byte) (int, error) {
	n, err := s.in.Write(p)
	return n, s.explain(err)
}

// explain says when it was somebody else who ended the stream.
func (s *stream) explain(err error) error {
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return err
	case s.taken.Load():
		return fmt.Errorf("containerd: stream: %w", client.ErrSuperseded)
	case errors.Is(err, syscall.EPIPE):
		return io.ErrClosedPipe
	}
	return err
}

// Close ends both directions and pending calls.
func (s *stream) Close() error {
	s.closing.Do(func() {
		for _, f := range []*os.File{s.in, s.out, s.turn} {
			if f != nil {
				s.err = errors.Join(s.err, f.Close())
			}
		}
	})
	return s.err
}
