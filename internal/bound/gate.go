package bound

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// Gate limits concurrent work of one client and of all clients, so that no client delays the others for long. The zero
// Gate has no limits.
type Gate struct {
	One, All *semaphore.Weighted
}

// Enter waits for both limits or until ctx is done. The caller must call leave after the work.
func (g Gate) Enter(ctx context.Context) (leave func(), err error) {
	if g.All == nil {
		return func() {}, nil
	}
	if err := g.One.Acquire(ctx, 1); err != nil {
		return nil, err
	}
	if err := g.All.Acquire(ctx, 1); err != nil {
		g.One.Release(1)
		return nil, err
	}
	return func() { g.All.Release(1); g.One.Release(1) }, nil
}

type editsKey struct{}

// WithEdits returns a context with a gate for edits of files.
func WithEdits(ctx context.Context, g Gate) context.Context {
	return context.WithValue(ctx, editsKey{}, g)
}

// Edits returns the gate of WithEdits. Without WithEdits, edits have no limits.
func Edits(ctx context.Context) Gate {
	g, _ := ctx.Value(editsKey{}).(Gate)
	return g
}
