package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/workcell-dev/workcell/backend"
)

// exactReader fails a body that is longer than was said, before its last bytes are passed on: what came until then must
// not be taken for all of it. A body that is too short is for the one who reads to notice.
type exactReader struct {
	r    io.Reader
	size int64
	left int64
}

// Read reads on, and at the end of what was said makes sure that nothing follows.
func (e *exactReader) Read(p []byte) (int, error) {
	if e.left == 0 {
		return 0, io.EOF
	}
	n, err := e.r.Read(p[:min(int64(len(p)), e.left)])
	e.left -= int64(n)
	if e.left > 0 || err != nil {
		return n, err
	}
	var more [1]byte
	_, err = io.ReadFull(e.r, more[:])
	switch {
	case err == nil:
		return 0, fmt.Errorf("%w: the contents are longer than the announced %d bytes", backend.ErrInvalid, e.size)
	case errors.Is(err, io.EOF):
		return n, nil
	}
	return 0, err
}

// cappedReader fails once more than left bytes came, or ctx has ended. The connection may still be reading when a call
// has returned, so it is locked.
type cappedReader struct {
	ctx   context.Context // of the call that reads
	r     io.Reader       // only used by the one who reads
	limit int64

	mu   sync.Mutex // guards left and err
	left int64
	err  error // the first failure that is not the end
}

// Read reads on, one byte more than allowed at most.
func (c *cappedReader) Read(p []byte) (int, error) {
	c.mu.Lock()
	left, err := c.left, c.err
	c.mu.Unlock()
	if err == nil {
		err = c.ctx.Err()
	}
	if err != nil {
		return 0, err
	}
	if int64(len(p)) > left+1 {
		p = p[:left+1]
	}
	n, err := c.r.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.left -= int64(n)
	if c.left < 0 {
		c.err = fileTooLarge(c.limit)
		return 0, c.err
	}
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

// failure returns what broke the body off, if anything did.
func (c *cappedReader) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// guardedInput is the standard input of a streamed command.
type guardedInput struct {
	r      io.Reader
	cancel func()
	over   chan struct{} // closed when the call has ended

	mu  sync.Mutex // guards err
	err error
}

// withInput calls fn with an input that reads r; nil is none. A command must not take a broken input for a whole one:
// when r fails, fn is cancelled, the failure does not end the input before fn returns, and withInput returns it.
func withInput[T any](ctx context.Context, r io.Reader, fn func(context.Context, io.Reader) (T, error)) (T, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if r == nil {
		return fn(ctx, nil)
	}
	in := &guardedInput{r: r, cancel: cancel, over: make(chan struct{})}
	defer close(in.over)
	answer, err := fn(ctx, in)
	in.mu.Lock()
	defer in.mu.Unlock()
	return answer, cmp.Or(in.err, err)
}

// Read reads from the caller's reader.
func (g *guardedInput) Read(p []byte) (int, error) {
	n, err := g.r.Read(p)
	if err == nil || errors.Is(err, io.EOF) {
		return n, err
	}
	g.mu.Lock()
	g.err = err
	g.mu.Unlock()
	g.cancel()
	<-g.over
	return n, err
}
