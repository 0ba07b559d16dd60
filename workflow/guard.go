package workflow

import (
	"context"
	"time"
)

// guard calls fn in a separate goroutine, to prevent a call from blocking the run beyond the end of its context. After
// grace, the call is abandoned. Later effects of the call on the run's sandboxes end when the sandboxes are closed. A
// panic in fn becomes an error.
func guard[T any](ctx context.Context, r *run, path string, fn func(context.Context) (T, error)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		a := answer{err: failf(codeInternal, nil, "the step's goroutine exited without a result")} // runtime.Goexit
		defer func() { done <- a }()
		defer r.recovered(path, &a.err)
		value, err := fn(ctx)
		a = answer{value, err}
	}()
	select {
	case a := <-done:
		return a.value, a.err
	case <-ctx.Done():
	}
	select {
	case a := <-done:
		return a.value, a.err
	case <-time.After(r.opts.StopGrace):
		var none T
		return none, failf(codeTimeout, context.Cause(ctx),
			"did not return within %s after it was canceled and was abandoned", r.opts.StopGrace)
	}
}
