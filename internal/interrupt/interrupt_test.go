package interrupt_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/interrupt"
)

// asks keeps requesting approvals, each with a timeout of a minute, until one is granted. It returns the number of
// requests without an approval.
func asks(ctx context.Context) (int, error) {
	for n := 0; ; n++ {
		within, cancel := context.WithTimeout(ctx, time.Minute)
		d, err := hosttools.ApproverFromContext(ctx).Approve(within, hosttools.ApprovalRequest{ID: "a"})
		cancel()
		if ctx.Err() != nil {
			return n, ctx.Err()
		}
		if err == nil && d.Allow {
			return n, nil
		}
	}
}

// TestNobodyComesBack: work ends with the first question if no answer arrives, regardless of how many questions would
// follow.
func TestNobodyComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		j := interrupt.Start(t.Context(), nil, asks)
		if q, _, err := j.Wait(t.Context()); q == nil {
			t.Fatal(err)
		}
		<-j.Done()
		if took := time.Since(began); took != time.Minute {
			t.Errorf("it ended after %s", took)
		}
		if q, n, err := j.Wait(t.Context()); q != nil || n != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("%v, %d, %v", q, n, err)
		}
	})
}

// TestWaitIsCancelled: canceling a waiting call ends the work, and a late answer does not block.
func TestWaitIsCancelled(t *testing.T) {
	t.Parallel()
	held := 0
	j := interrupt.Start(t.Context(), func() func() { held++; return func() { held-- } }, asks)
	q, _, _ := j.Wait(t.Context())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if again, _, err := j.Wait(ctx); again != nil || !errors.Is(err, context.Canceled) || held != 0 {
		t.Errorf("%v, %v, %d are held", again, err, held)
	}
	q.Answer(hosttools.Decision{Allow: true})
}

// TestRounds: a round can be taken once and only by the owner, and a round is removed after the end of the work.
func TestRounds(t *testing.T) {
	t.Parallel()
	type rounds = interrupt.Rounds[*interrupt.Job[int]]
	var r rounds
	keep := func(id string) *interrupt.Job[int] {
		j := interrupt.Start(t.Context(), nil, asks)
		q, _, err := j.Wait(t.Context())
		if q == nil {
			t.Fatal(err)
		}
		r.Keep(id, "owner", interrupt.Round[*interrupt.Job[int]]{Job: j, Questions: []*interrupt.Question{q}})
		return j
	}
	ended := keep("1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, _ = ended.Wait(ctx) // ends the work
	j := keep("2")
	for _, tc := range []struct {
		id, owner string
		want      bool
	}{{"1", "owner", false}, {"2", "other", false}, {"2", "owner", true}, {"2", "owner", false}} {
		round, ok := r.Take(tc.id, tc.owner)
		if ok != tc.want {
			t.Errorf("%s of %s: %t", tc.id, tc.owner, ok)
		}
		if ok {
			round.Questions[0].Answer(hosttools.Decision{Allow: true})
		}
	}
	if q, n, err := j.Wait(t.Context()); q != nil || n != 0 || err != nil {
		t.Errorf("%v, %d, %v", q, n, err)
	}
}
