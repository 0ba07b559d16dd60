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
	"github.com/workcell-dev/workcell/internal/telemetry"
)

const (
	fifoBytes = 1 << 20 // what a FIFO holds; the kernel's own default is 64 KiB
)

// stream is a sandbox's own stream: the FIFOs that the shim reads and writes. Unlike an engine's attach, two readers of
// a FIFO would each get a part of what comes, so there may be only one: it holds a lock on a third FIFO and
// lets go of everything as soon as somebody writes to that, in this process or another. The kernel frees the lock of a
// process that died.
type stream struct {
	in, out *os.File
	lock    *os.File // see streamLock
	taken   atomic.Bool

	closing sync.Once
	err     error // of closing
}

// openStream gets the lock and opens the FIFOs. ErrLost: nobody is at the other end.
func openStream(ctx context.Context, dir stateDir, id string) (*stream, error) {
	l := newStreamLock(dir, id)
	lock, held, err := l.acquire(ctx)
	if err != nil {
		return nil, err
	}
	s := &stream{lock: lock}
	if s.out, err = os.OpenFile(dir.file(id, fifoOut), os.O_RDONLY|unix.O_NONBLOCK, 0); err == nil {
		s.in, err = openWriter(ctx, dir.file(id, fifoIn))
	}
	if err != nil {
		return nil, errors.Join(lostFIFO(err), s.Close())
	}
	for _, f := range []*os.File{s.in, s.out} {
		enlarge(f)
	}
	go s.watch(l, held) // ends with Close
	return s, nil
}

// openWriter opens a FIFO to write, which fails as long as nobody reads; a shim that was just started opens its end beside
// its answer.
func openWriter(ctx context.Context, path string) (*os.File, error) {
	for deadline := time.Now().Add(lockWait); ; {
		f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NONBLOCK, 0)
		if !errors.Is(err, unix.ENXIO) || time.Now().After(deadline) || !pause(ctx, lockRetry) {
			return f, err
		}
	}
}

// pause waits for d, and reports whether ctx has not ended before.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// lostFIFO returns the error of a FIFO that cannot be opened.
func lostFIFO(err error) error {
	if errors.Is(err, unix.ENXIO) || errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("containerd: the sandbox's stream has no other end: %w", backend.ErrLost)
	}
	return stateError("open FIFOs", err)
}

// enlarge makes room in a FIFO; the default does as well, only slower.
func enlarge(f *os.File) {
	if c, err := f.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { _, _ = unix.FcntlInt(fd, unix.F_SETPIPE_SZ, fifoBytes) })
	}
}

// watch lets go when somebody else asks for the stream.
func (s *stream) watch(l *streamLock, held bool) {
	if !held && !l.await(s) {
		return
	}
	var b [1]byte
	if n, _ := s.lock.Read(b[:]); n > 0 {
		s.taken.Store(true)
		_ = s.Close() // nobody is left for the error
	}
}

// Read returns the guest's output.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.out.Read(p)
	return n, s.explain(err)
}

// Write sends to the guest.
func (s *stream) Write(p []byte) (int, error) {
	n, err := s.in.Write(p)
	return n, s.explain(err)
}

// explain returns the error of a stream that another reader ended, or err.
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
		for _, f := range []*os.File{s.in, s.out, s.lock} {
			if f != nil {
				s.err = errors.Join(s.err, f.Close())
			}
		}
	})
	return s.err
}

// Dial opens the FIFOs of the guest's standard streams, taking them from their holder.
func (b *Backend) Dial(ctx context.Context, id string) (_ io.ReadWriteCloser, err error) {
	ctx, done, err := b.calls.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, span := b.calls.Span(ctx, telemetry.SpanContainerdDial)
	defer func() { telemetry.End(span, err) }()
	r, err := b.running(ctx, id)
	if err != nil {
		return nil, err
	}
	s, err := openStream(ctx, r.state(), r.id)
	if err != nil {
		return nil, b.settle(ctx, "dial", err)
	}
	return s, nil
}
