// Package bound contains limits and helpers shared by packages without imports of each other.
package bound

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"
)

// ExecTimeout is the longest timeout of a command.
const ExecTimeout = time.Hour

// Pause waits for d, and reports whether ctx was still active at the end.
func Pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// Enter waits for a slot, at most until ctx is done. The caller must receive from slots after the work.
func Enter(ctx context.Context, slots chan<- struct{}) error {
	select {
	case slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Closed reports whether done is closed. Nothing may be sent to done.
func Closed(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// Recovered logs a panic of the caller with text and attrs, and then calls then. Without a panic, it does nothing. Call
// it with defer.
func Recovered(ctx context.Context, log *slog.Logger, text string, then func(), attrs ...any) {
	if r := recover(); r != nil {
		log.ErrorContext(ctx, text, append(attrs, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))...)
		then()
	}
}

// Await calls f every second until f succeeds or passes returns false for the error. After limit, or when ctx is done,
// Await returns the last error. It logs the first error with text.
func Await[T any](ctx context.Context, limit time.Duration, log *slog.Logger, text string, passes func(error) bool,
	f func() (T, error)) (T, error) {
	for begin, told := time.Now(), false; ; told = true {
		v, err := f()
		if err == nil || !passes(err) || time.Since(begin) >= limit {
			return v, err
		}
		if !told {
			log.WarnContext(ctx, text, "error", err)
		}
		if !Pause(ctx, time.Second) {
			return v, err
		}
	}
}

// Each calls fn with every index below n, with at most limit calls at a time, and returns the errors in the order of
// the indexes.
func Each(limit, n int, fn func(i int) error) []error {
	errs := make([]error, n)
	var group errgroup.Group
	group.SetLimit(limit)
	for i := range n {
		group.Go(func() error {
			errs[i] = fn(i)
			return nil
		})
	}
	_ = group.Wait() // fn is called for all indexes, even if some calls fail
	return errs
}
