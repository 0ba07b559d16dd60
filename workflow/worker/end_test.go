package worker

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/workcell-dev/workcell/workflow"
)

// TestEndWithoutDatabase verifies that a worker whose runs wait for the database exits within half a minute plus the
// grace, even if it has lost the lease before. Owner.Leave takes up to five seconds of that time.
func TestEndWithoutDatabase(t *testing.T) {
	for name, before := range map[string]time.Duration{"told to end": 0, "lost its lease": time.Minute} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithCancel(t.Context())
				runs, interrupt := context.WithCancelCause(context.WithoutCancel(ctx))
				w := &runWorker{o: Options{Grace: 10 * time.Second}, runs: runs}
				answered := make(chan struct{})
				defer close(answered)
				w.all.Go(func() { <-answered })
				time.AfterFunc(before, stop)
				ended := make(chan error, 1)
				go func() { ended <- w.end(ctx, interrupt) }()
				select {
				case err := <-ended:
					if err == nil || !errors.Is(context.Cause(runs), workflow.ErrInterrupted) {
						t.Errorf("it ended with %v, its runs with %v", err, context.Cause(runs))
					}
				case <-time.After(before + w.o.Grace + 25*time.Second):
					t.Error("it waits for its runs")
				}
			})
		})
	}
}
