// Package interrupt is for callers that cannot give approvals during a call. The call returns the questions, and the
// work, such as a command in a sandbox, waits in the background. A later call contains the answers and continues to
// wait for the same work.
package interrupt

import (
	"context"
	"errors"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/bound"
)

// Job is work that can continue after its first call has returned to ask for approvals. The methods are safe for
// concurrent use.
type Job[T any] struct {
	hold      func() (release func())
	cancel    context.CancelFunc
	asked     atomic.Bool
	questions chan *Question
	done      chan struct{} // closed when the work has ended; afterwards, out and err are set
	out       T
	err       error
}

// Question is a pending call of a host tool.
type Question struct {
	hosttools.ApprovalRequest
	answer chan hosttools.Decision // buffered, with space for one decision
}

// Answer decides about the call. It must be called only once.
func (q *Question) Answer(d hosttools.Decision) { q.answer <- d }

// Start starts work under a context that has the values of ctx, but is not canceled when ctx is. Approval requests in
// the work become questions for the callers of Wait. If hold is not nil, it is called before the work and before each
// question, and release is called afterwards.
func Start[T any](ctx context.Context, hold func() (release func()), work func(context.Context) (T, error)) *Job[T] {
	if hold == nil {
		hold = func() func() { return func() {} }
	}
	j := &Job[T]{hold: hold, questions: make(chan *Question), done: make(chan struct{})}
	ctx, j.cancel = context.WithCancel(hosttools.WithApprover(context.WithoutCancel(ctx), j))
	release := hold()
	go func() { // ends with the work, which does not wait for approvals forever
		defer close(j.done)
		defer release()
		defer j.cancel()
		j.out, j.err = work(ctx)
	}()
	return j
}

// Approve implements hosttools.Approver.
func (j *Job[T]) Approve(ctx context.Context, r hosttools.ApprovalRequest) (hosttools.Decision, error) {
	defer j.hold()()
	j.asked.Store(true)
	q := &Question{r, make(chan hosttools.Decision, 1)}
	select {
	case j.questions <- q:
	case <-j.done:
		return hosttools.Decision{Note: "the command continues in the background, where approvals are not possible"}, nil
	case <-ctx.Done():
		return j.unanswered(ctx)
	}
	select {
	case d := <-q.answer:
		return d, nil
	case <-ctx.Done():
		return j.unanswered(ctx)
	}
}

// unanswered cancels the work if no answer arrived before the deadline. Otherwise, the work could ask many more
// questions, although no caller waits for the result.
func (j *Job[T]) unanswered(ctx context.Context) (hosttools.Decision, error) {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		j.cancel()
	}
	return hosttools.Decision{}, ctx.Err()
}

// Wait is like Next, but cancels the work if ctx ends.
func (j *Job[T]) Wait(ctx context.Context) (q *Question, out T, err error) {
	if q, out, err = j.Next(ctx); q == nil && ctx.Err() != nil {
		j.Cancel()
	}
	return q, out, err
}

// Next waits for a question or for the end of the work. At the end, q is nil, and out and err are the results of the
// work. If ctx ends first, err is the cause, and the work continues.
func (j *Job[T]) Next(ctx context.Context) (q *Question, out T, err error) {
	select {
	case <-j.done:
		return nil, j.out, j.err
	case q := <-j.questions:
		return q, out, nil
	case <-ctx.Done():
		return nil, out, context.Cause(ctx)
	}
}

// Cancel cancels the work, and waits until it has ended.
func (j *Job[T]) Cancel() {
	j.cancel()
	<-j.done
}

// Another returns another question if one is already waiting, or nil.
func (j *Job[T]) Another() *Question {
	select {
	case q := <-j.questions:
		return q
	default:
		return nil
	}
}

// Asked reports whether the work has requested an approval.
func (j *Job[T]) Asked() bool { return j.asked.Load() }

// Done returns a channel that is closed at the end of the work.
func (j *Job[T]) Done() <-chan struct{} { return j.done }

// Round contains questions of a job sent to the caller for answers.
type Round[J ender] struct {
	Job       J
	Questions []*Question
}

// ender is implemented by [Job] and by types that contain one.
type ender interface{ Done() <-chan struct{} }

// Rounds stores rounds until they are answered. The zero value is empty. It is safe for concurrent use.
type Rounds[J ender] struct {
	mu   sync.Mutex // guards kept
	kept map[string]owned[J]
}

type owned[J ender] struct {
	Round[J]
	owner any
}

// Keep stores a round under an id. Only the owner, a comparable value, can take it.
func (r *Rounds[J]) Keep(id string, owner any, round Round[J]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept == nil {
		r.kept = map[string]owned[J]{}
	}
	// No answer arrived in time for the rounds of ended jobs.
	maps.DeleteFunc(r.kept, func(_ string, old owned[J]) bool { return bound.Closed(old.Job.Done()) })
	r.kept[id] = owned[J]{round, owner}
}

// Take removes and returns a round if it belongs to owner.
func (r *Rounds[J]) Take(id string, owner any) (Round[J], bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	kept, ok := r.kept[id]
	if !ok || kept.owner != owner {
		return Round[J]{}, false
	}
	delete(r.kept, id)
	return kept.Round, true
}
