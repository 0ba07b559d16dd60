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

// exactReader returns an error if a body is longer than size. The error comes before the last bytes, to prevent callers
// from using a part as the whole body. The caller must detect a short body.
type exactReader struct {
	r    io.Reader
	size int64
	left int64
}

// Read reads the next bytes. After size bytes, it checks for the end of the body.
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

// cappedReader fails after left bytes, or when ctx has ended. It has a lock because the connection may still be reading
// after a call has returned.
type cappedReader struct {
	ctx   context.Context // context of the reading call
	r     io.Reader       // only used by the reading goroutine
	limit int64

	mu   sync.Mutex // guards left and err
	left int64
	err  error // first error other than io.EOF
}

// Read reads at most one byte more than allowed.
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

// failure returns the error of an interrupted body, or nil.
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

// withInput calls fn with an input from r. If r is nil, the input is nil. A command must not mistake an interrupted
// input for a complete one. Therefore, if r fails, withInput cancels fn, keeps the input open until fn returns, and
// then returns r's error.
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
