// Package interrupt is for callers that cannot be asked for approvals while a call of theirs is under way: the call is
// answered with the questions, and its work, such as a command in a sandbox, waits in the background. A later call
// brings the answers, and waits on for the same work.
package interrupt

import (
	"context"
	"errors"
	"sync"

	"github.com/workcell-dev/workcell/gateway/hosttools"
)

// Job is work that outlives the call that began it while somebody is asked for approvals. Its methods may be called
// concurrently.
type Job[T any] struct {
	hold      func() (release func())
	cancel    context.CancelFunc
	questions chan *Question
	done      chan struct{} // closed when the work has ended: out and err are set
	out       T
	err       error
}

// Question is a call of a host tool that waits for an answer.
type Question struct {
	hosttools.ApprovalRequest
	answer chan hosttools.Decision // has room for one
}

// Answer decides about the call. It is called once.
func (q *Question) Answer(d hosttools.Decision) { q.answer <- d }

// Start begins work, under a context with the values of ctx and without its end; approvals below it are questions to
// the callers of Wait. hold, unless nil, is called before the work and before each question, release behind them.
func Start[T any](ctx context.Context, hold func() (release func()), work func(context.Context) (T, error)) *Job[T] {
	if hold == nil {
		hold = func() func() { return func() {} }
	}
	j := &Job[T]{hold: hold, questions: make(chan *Question), done: make(chan struct{})}
	ctx, j.cancel = context.WithCancel(hosttools.WithApprover(context.WithoutCancel(ctx), j))
	release := hold()
	go func() { // ends with the work, which an approval that nobody gives does not keep
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

// unanswered ends the work when nobody has come back for it in all the time there is for an answer: there may be many
// more questions, and nobody who would get the result.
func (j *Job[T]) unanswered(ctx context.Context) (hosttools.Decision, error) {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		j.cancel()
	}
	return hosttools.Decision{}, ctx.Err()
}

// Wait waits like Next, and cancels the work if ctx ends.
func (j *Job[T]) Wait(ctx context.Context) (q *Question, out T, err error) {
	if q, out, err = j.Next(ctx); q == nil && ctx.Err() != nil {
		j.Cancel()
	}
	return q, out, err
}

// Next waits for a question, or for the end of the work. At the end q is nil, and out and err are the results of the
// work. If ctx ends first, err is its cause, and the work continues.
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

// Cancel ends the work, and waits until it has ended.
func (j *Job[T]) Cancel() {
	j.cancel()
	<-j.done
}

// Another returns a further question that waits already; nil when there is none.
func (j *Job[T]) Another() *Question {
	select {
	case q := <-j.questions:
		return q
	default:
		return nil
	}
}

// Done returns a channel that is closed when the work has ended.
func (j *Job[T]) Done() <-chan struct{} { return j.done }

// Round is the questions of a job that its caller has and is to answer.
type Round[J Ender] struct {
	Job       J
	Questions []*Question
}

// Ender is a [Job], or has one.
type Ender interface{ Done() <-chan struct{} }

// Rounds keeps rounds until they are answered. The zero value is empty. It is safe for concurrent use.
type Rounds[J Ender] struct {
	mu   sync.Mutex // guards kept
	kept map[string]owned[J]
}

type owned[J Ender] struct {
	Round[J]
	owner any
}

// Keep keeps a round for whoever comes with its id and is its owner, a comparable value.
func (r *Rounds[J]) Keep(id string, owner any, round Round[J]) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.kept == nil {
		r.kept = map[string]owned[J]{}
	}
	for id, old := range r.kept {
		select {
		case <-old.Job.Done():
			delete(r.kept, id) // nobody answered in time
		default:
		}
	}
	r.kept[id] = owned[J]{round, owner}
}

// Take returns a round, once and to its owner alone.
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
