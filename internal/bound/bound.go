// Package bound holds the bounds that packages have in common which do not import each other.
package bound

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"
)

// ExecTimeout is the longest time that a command may take.
const ExecTimeout = time.Hour

// Pause waits for d and reports whether ctx lasted that long.
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

// Each calls fn for every element of list, limit of them at a time, and returns the errors in the list's order.
func Each[T any](limit int, list []T, fn func(T) error) []error {
	errs := make([]error, len(list))
	var group errgroup.Group
	group.SetLimit(limit)
	for i, v := range list {
		group.Go(func() error {
			errs[i] = fn(v)
			return nil
		})
	}
	_ = group.Wait() // all are tried, whatever became of the others
	return errs
}
