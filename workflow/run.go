package workflow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/firebase/genkit/go/core"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/transfer"
)

// errRunTimeout is the cause of the end of a run's context at the timeout.
var errRunTimeout = fmt.Errorf("the run timed out: %w", context.DeadlineExceeded)

// errStepTimeout is the cause of the end of a step's context at the timeout.
var errStepTimeout = fmt.Errorf("the step timed out: %w", context.DeadlineExceeded)

// ErrInterrupted interrupts a run if it is the cause of the end of the run's context (context.WithCancelCause). The run
// then ends as if the process had died: nothing more is recorded, the sandboxes are kept, and the next process resumes
// the run. The result's Unfinished wraps it.
var ErrInterrupted = errors.New("the run was interrupted and can be resumed")

// errSibling is the cause of the end of a branch's context if another branch failed.
var errSibling = errors.New("another branch failed")

// Messages of steps that an enclosing step ended. If the process dies before the enclosing step ends, they run again.
const (
	endedByTimeout = "the enclosing step took too long"
	endedBySibling = "canceled because another branch failed"
)

// run is one run of a workflow.
type run struct {
	*Engine
	wf       *Workflow
	base     session.Request // default request for the run's sandboxes
	input    map[string]any  // plain data, never modified
	info     map[string]any  // value of `run` in expressions
	chain    []string
	started  time.Time
	executed atomic.Bool  // set by the first caller
	steps    atomic.Int64 // number of attempts
	held     atomic.Int64 // size of the state in bytes
	limits   sync.Map     // by sandbox ID: ExecStatus.Limit of the last command
	// conversations is the size in bytes of the recorded conversations of active agents.
	conversations atomic.Int64
	stream        core.StreamCallback[Event]
	workspace     *transfer.Snapshot      // initial files of the run's sandboxes; nil without a workspace
	interrupt     context.CancelCauseFunc // ends the run so it can be resumed
	past          *past                   // for an interrupted run; nil for a new run
	leftover      sync.Map                // places of ended branches, by the name of their isolated sandbox
	trace         string                  // traceparent of the run's span
	checkpoint    *Checkpoint             // checkpoint to go back to, or nil
	behind        int64                   // number of the last entry before the checkpoint

	// mu guards seq and result.Evidence. It is held while an entry is written or an event is emitted, to keep their order.
	mu  sync.Mutex
	seq int64

	result Result // written by execute and finalize; read after they have returned
}

func newRun(e *Engine, wf *Workflow, input map[string]any, chain []string) *run {
	r := &run{Engine: e, wf: wf, input: input, chain: chain, started: time.Now(), interrupt: func(error) {}}
	r.result = Result{Workflow: wf.ID}
	r.identify(session.NewRunID(), r.started)
	return r
}

// identify sets the id and the start time of the run.
func (r *run) identify(id string, started time.Time) {
	r.result.RunID, r.result.Started = id, started
	r.info = map[string]any{"id": id, "workflow": r.wf.ID, "started_at": started.UTC().Format(time.RFC3339Nano)}
}

func (r *run) scope() session.Run {
	if r.opts.Within != nil {
		return *r.opts.Within
	}
	return session.Run{Namespace: record.NamespaceWorkflow, ID: r.result.RunID}
}

// span starts the span of the run. The returned function ends it.
func (r *run) span(ctx context.Context) (context.Context, func()) {
	ctx, span := telemetry.StartOperation(ctx, r.opts.TracerProvider, semconv.InvokeWorkflow, semconv.AgentName, r.wf.ID,
		telemetry.KeyRunID.String(r.result.RunID), telemetry.KeyWorkflowID.String(r.wf.ID),
		semconv.ConversationID.String(r.result.RunID))
	r.trace = telemetry.TraceParent(ctx)
	if r.past != nil {
		span.AddLink(trace.Link{SpanContext: telemetry.ParseTraceParent(r.past.trace)}) // an invalid link is ignored
	}
	return ctx, func() {
		span.SetAttributes(telemetry.KeyOutcome.String(string(r.result.Outcome)), telemetry.KeySteps.Int(r.result.Steps))
		if e := r.result.failure(); e != nil {
			telemetry.Fail(span, string(e.Code))
		}
		span.End()
	}
}

// execute runs the run, closes the sandboxes, and sets the result.
func (r *run) execute(ctx context.Context) (any, error) {
	ctx, r.interrupt = context.WithCancelCause(ctx)
	defer r.interrupt(nil)
	if r.manager != nil {
		defer r.manager.KeepInUse(r.scope().Scope())()
	}
	out, err := r.perform(ctx)
	r.finalize(ctx, out, err)
	if err := r.result.failure(); err != nil {
		return nil, err
	}
	return out, nil
}

// perform runs the steps. A panic in the engine becomes the run's error, to ensure the cleanup of the sandboxes.
func (r *run) perform(ctx context.Context) (out any, err error) {
	defer r.recovered("", &err)
	ctx, cancel := context.WithTimeoutCause(r.bind(ctx), r.wf.Timeout, errRunTimeout)
	defer cancel()
	if err := r.restorable(ctx); err != nil {
		return nil, r.ended(ctx, err)
	}
	if err := r.announce(ctx); err != nil {
		return nil, err
	}
	root, err := r.root(ctx)
	if err == nil {
		err = r.restore(ctx)
	}
	if err == nil {
		err = r.takeOver(ctx)
	}
	if err == nil {
		err = r.sequence(ctx, root, r.wf.steps)
	}
	if err != nil {
		return nil, r.ended(ctx, err)
	}
	return root.last, nil
}

// announce records and reports the start of the run, or the resumption.
func (r *run) announce(ctx context.Context) error {
	entry := Entry{Kind: EventRunStarted, Time: r.started.UTC(), Workflow: r.wf.ID, Hash: r.wf.Hash, Input: r.input}
	if r.past != nil {
		entry = Entry{Kind: EventRunResumed, Behind: r.behind}
	}
	entry.TraceParent = r.trace
	if err := r.record(ctx, &entry); err != nil {
		return err
	}
	r.emit(ctx, Event{Kind: entry.Kind})
	return nil
}

// bind returns a context with the run for agents and their tools.
func (r *run) bind(ctx context.Context) context.Context {
	ctx = session.WithRun(ctx, r.scope())
	ctx = wish.WithYield(session.WithBase(ctx, r.base), r.wf.yield)
	ctx = session.WithSessionName(ctx, record.DefaultName)
	if r.wf.agent == nil {
		ctx = hosttools.WithWorkflow(ctx, r.wf.ID)
	}
	ctx = context.WithValue(ctx, runIDKey{}, r.result.RunID)
	return context.WithValue(ctx, chainKey{}, r.chain)
}

// ended sets the outcome of a run whose context ended, whatever error the current step returned. The context may have
// ended in an earlier process, which recorded the end of the step but not of the run.
func (r *run) ended(ctx context.Context, err error) error {
	if r.opts.Journal != nil && outage(err, false) { // from actions outside steps, for example a rollback to a checkpoint
		r.interrupt(fmt.Errorf("%w: %w", ErrInterrupted, err))
	}
	stop, e := r.stopped(ctx), asError(err, codeInternal)
	switch {
	case stop != nil:
	case r.past != nil && e.Final && e.Code == CodeCancelled:
		stop = finalf(e.Code, context.Canceled, "%s", e.Message)
	case r.past != nil && e.Final && e.Code == codeTimeout:
		stop = finalf(e.Code, context.DeadlineExceeded, "%s", e.Message)
	default:
		return err
	}
	stop.Step = e.Step
	r.result.Outcome = Cancelled
	if errors.Is(stop, context.DeadlineExceeded) {
		r.result.Outcome = TimedOut
	}
	return stop
}

// stopped returns the error of an ended context. If the context has not ended, it returns nil.
func (r *run) stopped(ctx context.Context) *Error {
	switch cause := context.Cause(ctx); {
	case ctx.Err() == nil:
		return nil
	case errors.Is(cause, errRunTimeout):
		return finalf(codeTimeout, cause, "the run timed out after %s", r.wf.Timeout)
	case errors.Is(cause, errStepTimeout):
		return finalf(codeTimeout, cause, endedByTimeout)
	case errors.Is(cause, ErrInterrupted):
		return interruption(ctx)
	case errors.Is(cause, errSibling):
		return finalf(CodeCancelled, context.Canceled, endedBySibling)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return finalf(codeTimeout, ctx.Err(), "the caller's deadline has passed")
	}
	return finalf(CodeCancelled, context.Canceled, "canceled")
}

// interrupted reports whether the run was interrupted and must be left for a later Resume.
func interrupted(ctx context.Context) bool { return errors.Is(context.Cause(ctx), ErrInterrupted) }

func interruption(ctx context.Context) *Error {
	cause := context.Cause(ctx)
	return finalf(codeInterrupted, cause, "%v", cause)
}

// finalize closes the run's sandboxes and sets the result.
func (r *run) finalize(ctx context.Context, out any, err error) {
	recorded := !interrupted(ctx) && r.conclude(ctx, out, err)
	leave := !recorded && interrupted(ctx)
	if leave { // even if it was about to end; the next process ends it
		r.result.Outcome, r.result.Output = Cancelled, nil
		r.result.Error, r.result.Unfinished = interruption(ctx), interruption(ctx)
	}
	r.result.Steps, r.result.Duration = int(r.steps.Load()), time.Since(r.started)
	if !leave {
		ev := Event{Kind: EventRunFinished, Outcome: r.result.Outcome, Duration: r.result.Duration, Error: r.result.failure()}
		r.emit(context.WithoutCancel(ctx), ev)
	}
}

// untilInterrupted returns a context ending only if the run is interrupted.
func untilInterrupted(ctx context.Context) (context.Context, context.CancelFunc) {
	out, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		if interrupted(ctx) {
			cancel(context.Cause(ctx))
		}
	})
	return out, func() { stop(); cancel(nil) }
}

// conclude collects the outputs, closes the sandboxes, and records the end. It reports whether the end is recorded.
func (r *run) conclude(ctx context.Context, out any, err error) bool {
	ctx, cancel := untilInterrupted(ctx)
	defer cancel()
	if err != nil {
		r.result.Error = asError(err, codeInternal)
		r.result.Outcome = cmp.Or(r.result.Outcome, Failed)
	} else {
		r.result.Outcome, r.result.Output = Succeeded, out
	}
	if r.result.Error != nil && r.wf.Checkpoints && r.result.Outcome != Cancelled && r.opts.Within == nil &&
		r.opts.Journal != nil {
		r.result.Unfinished = failf(r.result.Error.Code, nil, "the run failed and can be resumed from an earlier step")
	} else {
		r.collectResults(ctx)
	}
	if r.result.Unfinished != nil {
		return false
	}
	r.result.Cleanup = r.cleanUp(ctx)
	return r.finish(ctx)
}

// finish records the end of the run. The initial files of its sandboxes are kept until then, because a run whose
// process dies earlier is resumed.
func (r *run) finish(ctx context.Context) bool {
	last := Entry{Kind: EventRunFinished, Outcome: r.result.Outcome, Error: r.result.Error, Output: r.result.Output}
	err := r.record(ctx, &last)
	if err == nil {
		r.dropWorkspace()
		return true
	}
	r.opts.Logger.Error("cannot record the end of a run", "run", r.result.RunID, "error", err)
	if r.result.Error == nil {
		r.result.Outcome, r.result.Output, r.result.Error = Failed, nil, asError(err, codeJournal)
	}
	return false
}

// dropWorkspace removes the initial files of the run's sandboxes or passes them to OnSnapshot.
func (r *run) dropWorkspace() {
	switch {
	case r.workspace == nil:
	case r.opts.OnSnapshot != nil:
		r.opts.OnSnapshot(r.workspace)
	default:
		if err := r.workspace.Remove(); err != nil {
			r.opts.Logger.Warn("cannot remove the copy of a run's workspace", "run", r.result.RunID, "error", err)
		}
	}
}

// cleanUp closes the sandboxes of the run. Retained sandboxes stay on the engine and accept no more calls.
func (r *run) cleanUp(ctx context.Context) error {
	if r.manager == nil || r.opts.Within != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	err := r.manager.CloseScope(ctx, r.scope().Scope())
	ev := Event{Kind: EventCleanup}
	if err != nil {
		r.opts.Logger.Error("cannot remove all sandboxes of a run", "run", r.result.RunID, "error", err)
		ev.Error = asError(err, codeInternal)
	}
	r.emit(ctx, ev)
	return err
}

// record writes a journal entry and sets the number. A canceled run still records the entries. An interrupted run does
// not, because the interruption is not part of the run.
func (r *run) record(ctx context.Context, e *Entry) error {
	if r.opts.Journal == nil {
		return nil
	}
	if interrupted(ctx) { // the interruption causes all later ends
		return interruption(ctx)
	}
	ctx, cancel := untilInterrupted(ctx)
	defer cancel()
	r.mu.Lock()
	defer r.mu.Unlock()
	e.RunID, e.Seq, e.Time = r.result.RunID, r.seq+1, cmp.Or(e.Time, time.Now().UTC())
	err := r.append(ctx, *e)
	if err == nil {
		r.seq++
		return nil
	}
	failure := finalf(codeJournal, errors.Join(ErrJournal, err), "the journal failed: %v", err)
	if r.seq > 0 { // for the journal, the run is interrupted from now on
		r.interrupt(fmt.Errorf("%w: %w", ErrInterrupted, failure))
	}
	return failure
}

func (r *run) append(ctx context.Context, e Entry) (err error) {
	defer r.recovered(e.Path, &err)
	return r.opts.Journal.Append(ctx, e)
}

// emit passes an event to OnEvent and to the streaming caller of the flow. It recovers from their panics.
func (r *run) emit(ctx context.Context, ev Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.recovered(ev.Path, new(error))
	ev.RunID, ev.Workflow, ev.Time = r.result.RunID, r.wf.ID, time.Now().UTC()
	for _, e := range ev.Evidence {
		if !slices.Contains(r.result.Evidence, e) {
			r.result.Evidence = append(r.result.Evidence, e)
		}
	}
	if r.opts.OnEvent != nil {
		r.opts.OnEvent(ev)
	}
	if r.stream != nil && r.stream(ctx, ev) != nil {
		r.stream = nil // the listener has disconnected; the run continues
	}
}
