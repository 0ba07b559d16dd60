package workflow

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/firebase/genkit/go/core"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/transcript"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// sequence runs steps until a step ends the sequence or the last step has run.
func (r *run) sequence(ctx context.Context, sc *scope, seq *sequence) error {
	for at := seq.start; at < len(seq.steps); {
		if stop := r.stopped(ctx); stop != nil {
			return stop
		}
		next, err := r.step(ctx, sc, seq.steps[at])
		if err != nil {
			return err
		}
		at = next
	}
	return nil
}

// execution is one execution of a step.
type execution struct {
	*step
	run     *run
	scope   *scope
	path    string
	visit   int
	session string // name of the default sandbox in this step

	used     AgentOutput              // cost, usage, and evidence of the current attempt
	attempts int                      // begun
	losses   int                      // interrupted attempts before this one
	started  int64                    // number of the journal entry with which the latest began
	past     *transcript.Conversation // of the agent, in the attempt this one repeats; nil to begin at the start
}

type handledKey struct{} // set in steps inside a step whose failures are handled by retry or on_error

// result is the result of a step.
type result struct {
	output any
	has    bool           // output is set
	last   bool           // output may become the output of the sequence
	vars   map[string]any // variables to set
	next   *target        // next step, from a switch
	end    bool           // the sequence ends here
}

// step runs one step with all retries and returns the index of the next step.
func (r *run) step(ctx context.Context, sc *scope, s *step) (int, error) {
	sc.visits[s.id]++
	ex := &execution{step: s, run: r, scope: sc, path: sc.path + s.id, visit: sc.visits[s.id]}
	ex.session = s.sandbox.in(sc.session, s.id, sc.path, ex.visit)
	if e, ok := r.past.take(ex.path); ok {
		return ex.replay(ctx, e)
	}
	before := r.past.continued(ex.path)
	skip, err := ex.skipped(ctx)
	if err != nil {
		return ex.finish(ctx, 0, time.Time{}, result{}, err)
	}
	if skip {
		return ex.skip(ctx)
	}
	if s.sandbox.isolated {
		defer ex.closeIsolated(ctx, ex.session)
	}
	defer ex.closeInside(ctx) // if the end cannot be recorded
	for attempt := before.failed + 1; ; attempt++ {
		started := time.Now()
		res, err := ex.attempt(ctx, attempt, before.of(attempt))
		if err == nil || !ex.retries(ctx, err, attempt) {
			return ex.finish(ctx, attempt, started, res, err)
		}
		if err := ex.failedAttempt(ctx, attempt, started, res, err); err != nil {
			return 0, err
		}
	}
}

// skipped evaluates the step's `if` and its max_visits.
func (ex *execution) skipped(ctx context.Context) (bool, error) {
	if ex.cond != nil {
		ok, err := ex.cond.EvalBool(ctx, ex.scope.variables())
		if err != nil || !ok {
			return true, ex.run.wf.withPosition(err)
		}
	}
	if ex.maxVisits > 0 && ex.visit > ex.maxVisits {
		return false, failf(codeMaxVisits, nil, "reached more than %d times (max_visits)", ex.maxVisits)
	}
	return false, nil
}

// undoVisit undoes the count of an execution, because max_visits only counts real executions.
func (ex *execution) undoVisit() {
	ex.visit--
	ex.scope.visits[ex.id]--
	ex.scope.update(ex.id, map[string]any{"status": string(StatusSkipped)})
}

func (ex *execution) skip(ctx context.Context) (int, error) {
	ex.undoVisit()
	next := ex.index + 1
	e := Entry{Kind: EventStepFinished, Status: StatusSkipped, Next: ex.nameOf(next)}
	return next, ex.note(ctx, e, Event{Kind: EventStepSkipped})
}

// attempt runs one attempt. The attempt counts against max_steps, is recorded before it starts, and has a separate
// span. If the run was interrupted during this attempt, attempt repeats it, and an agent continues the conversation.
func (ex *execution) attempt(ctx context.Context, attempt int, before visit) (res result, err error) {
	r := ex.run
	if before.running { // it was counted when it first started, so repeated interruptions do not count
	} else if n := r.steps.Add(1); n > int64(r.wf.MaxSteps) {
		r.steps.Add(-1)
		return res, finalf(codeMaxSteps, nil, "the run reached max_steps (%d)", r.wf.MaxSteps)
	}
	ex.scope.update(ex.id, map[string]any{"status": string(StatusRunning), "visits": int64(ex.visit),
		"attempts": int64(attempt)})
	ex.attempts, ex.losses, ex.past, ex.used = attempt, len(before.starts), before.kept(), AgentOutput{}
	lost := before.conversation.Lost()
	empty, adoptErr := ex.adopt(ctx)
	if empty && ex.past != nil {
		ex.past, lost = nil, "the agent's sandbox is lost"
	}
	begin := Entry{Kind: EventStepStarted, Attempt: attempt, Status: StatusRunning, Repeats: before.running}
	if ex.past != nil {
		begin.Turns = ex.past.Turns()
	}
	if err := ex.note(ctx, begin, Event{Lost: lost}); err != nil {
		return res, err
	}
	spanCtx, span := telemetry.StartWith(ctx, r.opts.TracerProvider, telemetry.SpanWorkflowStep,
		telemetry.KeyRunID.String(r.result.RunID), telemetry.KeyWorkflowID.String(r.wf.ID), telemetry.KeyStepID.String(ex.id),
		telemetry.Text(telemetry.KeyStepPath, ex.path), telemetry.KeyStepType.String(string(ex.typ)),
		telemetry.KeyVisit.Int(ex.visit), telemetry.KeyAttempt.Int(attempt))
	defer func() {
		outcome := string(StatusSucceeded)
		if err != nil {
			telemetry.Fail(span, string(asError(err, codeInternal).Code))
			outcome = string(StatusFailed)
		}
		span.SetAttributes(telemetry.KeyOutcome.String(outcome))
		span.End()
	}()
	if ex.onError.id != "" || attempt < ex.retry.attempts {
		spanCtx = context.WithValue(spanCtx, handledKey{}, true)
	}
	spanCtx = audit.With(spanCtx, func(a *audit.Record) { a.Run, a.Step = r.result.RunID, ex.path })
	spanCtx = ex.label(spanCtx, nil)
	if ex.run.wf.agent == nil || ex.run.opts.Within == nil { // otherwise a coding agent starts a new conversation
		spanCtx = hosttools.WithStep(spanCtx, ex.path, ex.visit)
	}
	if adoptErr != nil {
		return res, adoptErr
	}
	return ex.perform(spanCtx)
}

// perform runs the step's body with the step's timeout, as a step of the Genkit flow.
func (ex *execution) perform(ctx context.Context) (res result, err error) {
	limited := ctx
	if ex.timeout > 0 {
		limit := ex.timeout
		if ex.typ == TypeExec { // the sandbox enforces the timeout
			limit += execGrace
		}
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeoutCause(ctx, limit, errStepTimeout)
		defer cancel()
	}
	// Genkit records only the status of a step, because outputs of commands and agents may contain secrets.
	_, err = core.RunWithContext(limited, ex.id, func(ctx context.Context) (string, error) {
		var err error
		res, err = ex.runBody(ctx)
		return string(StatusSucceeded), err
	})
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		e := failf(codeTimeout, errStepTimeout, "timed out after %s", ex.timeout)
		if inside, ok := errors.AsType[*Error](err); ok {
			e.Failed = inside.Failed
		}
		return res, e
	}
	return res, err
}

// runBody runs the type-specific part of a step. A panic makes the step fail.
func (ex *execution) runBody(ctx context.Context) (res result, err error) {
	defer ex.run.recovered(ex.path, &err)
	if res, err = ex.body.run(ctx, ex); res.has {
		plain, sizeErr := expr.Normalize(res.output, maxOutputBytes)
		if sizeErr != nil {
			return result{}, failf(codeTooLarge, ErrLimit, "cannot save the output: %v", sizeErr)
		}
		res.output = plain
	}
	return res, ex.run.wf.withPosition(err)
}

// recovered converts a panic to an error. The stack is only logged, not shown to the user. Call it with defer.
func (r *run) recovered(path string, err *error) {
	if p := recover(); p != nil {
		r.opts.Logger.Error("panic in a workflow step",
			"run", r.result.RunID, "step", path, "panic", p, "stack", string(debug.Stack()))
		*err = &Error{Code: codePanic, Message: "panic: " + clip(strings.Join(strings.Fields(fmt.Sprint(p)), " "))}
	}
}

// retries reports whether a failed attempt is retried. To avoid useless attempts, deterministic failures are not
// retried.
func (ex *execution) retries(ctx context.Context, err error, attempt int) bool {
	e := asError(err, fallbackCode(ex.typ))
	switch {
	case e.Final || attempt >= ex.retry.attempts || ctx.Err() != nil,
		ex.run.opts.Journal != nil && outage(err, true),
		e.Limit != "" || errors.Is(err, backend.ErrQuota) && !errors.Is(err, backend.ErrNoRoom):
		return false
	}
	return !slices.Contains([]Code{codeExpression, codeNoMatch, codeFailed, codeTooLarge, codeLimit}, e.Code)
}

// failedAttempt records a failure before a retry and waits for the backoff.
func (ex *execution) failedAttempt(ctx context.Context, attempt int, started time.Time, res result, err error) error {
	e := Entry{Attempt: attempt, Status: StatusFailed, Error: ex.failure(err), Retry: true}
	if err := ex.end(ctx, e, started, res); err != nil {
		return err
	}
	ex.run.past.startOver(ex.path)
	delay := ex.retry.wait(attempt)
	retry := ex.event(Entry{Kind: EventStepRetry, Attempt: attempt + 1})
	retry.Delay = delay
	ex.run.emit(ctx, retry)
	if bound.Pause(ctx, delay) {
		return nil
	}
	return ex.run.stopped(ctx)
}

// finish records the end of the step and returns the index of the next step.
func (ex *execution) finish(ctx context.Context, attempt int, started time.Time, res result, err error) (int, error) {
	next := ex.following(res)
	e := Entry{Attempt: attempt, Status: StatusSucceeded, Vars: res.vars}
	if err != nil {
		if stop := ex.run.stopped(ctx); stop != nil {
			err = stop // the step's own error is only a consequence
		} else if stop := ex.interruptedBy(ctx, err); stop != nil {
			return 0, stop
		}
		e.Status, e.Error = StatusFailed, ex.failure(err)
		err = nil
		switch {
		case e.Error.Final || ctx.Err() != nil || ex.onError.id == "":
			next, err = len(ex.seq.steps), e.Error
		case ex.onError.id != onErrorContinue:
			next = ex.seq.index[ex.onError.id]
		}
	}
	e.Next = ex.nameOf(next)
	if failed := ex.end(ctx, e, started, res); failed != nil {
		return 0, failed
	}
	ex.dropForks(ctx)
	return next, err
}

// maxLosses is the maximum number of interrupted attempts of a step. Afterwards, the loss of the sandbox, or an error
// when a resumed run opens it, makes the step fail, because the step or the run may be the cause.
const maxLosses = 5

// interruptedBy interrupts the run if a resumed run can repeat the step after err. It returns nil if the step fails.
func (ex *execution) interruptedBy(ctx context.Context, err error) error {
	if ex.run.opts.Journal == nil || !ex.canRepeat(ctx, err) {
		return nil
	}
	ex.run.interrupt(fmt.Errorf("%w: step %s: %w", ErrInterrupted, ex.path, err))
	return interruption(ctx)
}

// canRepeat reports whether a step failed because of its engine, and whether a resumed run can repeat it with the files
// of the earlier steps.
func (ex *execution) canRepeat(ctx context.Context, err error) bool {
	handled := ex.onError.id != "" || ctx.Value(handledKey{}) != nil
	switch {
	case outage(err, handled):
		return true
	case handled || ex.losses >= maxLosses || ex.run.manager == nil:
		return false
	case !errors.Is(err, backend.ErrLost):
		return errors.Is(err, errUnopened)
	}
	gone, _, err := ex.run.manager.Gone(ctx, ex.run.scope().Scope())
	return err != nil || len(gone) == 0
}

// outage reports whether the cause of err is outside the run. If a component is down or full, on_error may handle the
// error. If another process has the sandbox, they may not.
func outage(err error, handled bool) bool {
	full := errors.Is(err, backend.ErrCapacity) || errors.Is(err, backend.ErrNoRoom)
	away := errors.Is(err, backend.ErrUnavailable) || errors.Is(err, backend.ErrVersion)
	return (full || away) && !handled || errors.Is(err, record.ErrHeld)
}

// end publishes the outcome of an attempt to expressions, the journal, and observers.
func (ex *execution) end(ctx context.Context, e Entry, started time.Time, res result) error {
	if err := ex.keep(e.Status, res, e.Error); err != nil {
		return err
	}
	e.Kind, e.CostUSD, e.Usage, e.Evidence = EventStepFinished, ex.used.CostUSD, ex.used.Usage, ex.used.Evidence
	if res.has {
		e.Output, e.Has = res.output, true
	}
	var ev Event
	if !started.IsZero() {
		ev.Duration = time.Since(started)
	}
	if !e.Retry {
		var err error
		if e.Checkpoint, err = ex.checkpoint(ctx); err != nil {
			return err
		}
	}
	if err := ex.note(ctx, e, ev); err != nil {
		return err
	}
	ex.closeInside(ctx)
	return nil
}

// keep makes the outcome of the step visible to expressions.
func (ex *execution) keep(status Status, res result, failure *Error) error {
	change := map[string]any{"status": string(status), "visits": int64(ex.visit)}
	if failure != nil {
		change["error"] = failure.data()
		ex.scope.update(ex.id, change)
	} else {
		ex.scope.update(ex.id, change, "error")
	}
	if res.vars != nil {
		if err := ex.scope.assign(res.vars); err != nil {
			return err
		}
	}
	if !res.has {
		return nil
	}
	if res.last && failure == nil {
		ex.scope.last = res.output
	}
	ex.scope.update(ex.id, map[string]any{"output": res.output})
	return ex.scope.account(ex.id, expr.Size(res.output))
}

// failure returns an Error with the step's path.
func (ex *execution) failure(err error) *Error {
	e := *asError(err, fallbackCode(ex.typ))
	e.Step = cmp.Or(e.Step, ex.path)
	return &e
}

func fallbackCode(t Type) Code {
	if t == TypeAgent {
		return CodeAgent
	}
	return codeInternal
}

// following returns the index of the next step after a success.
func (ex *execution) following(res result) int {
	switch {
	case res.end:
		return len(ex.seq.steps)
	case res.next != nil:
		return ex.seq.index[res.next.id]
	case ex.next.id != "":
		return ex.seq.index[ex.next.id]
	}
	return ex.index + 1
}

// nameOf returns the id of a step in the sequence. For the end of the sequence, it returns "".
func (ex *execution) nameOf(index int) string {
	if index >= len(ex.seq.steps) {
		return ""
	}
	return ex.seq.steps[index].id
}

// entry adds the step's fields to an entry.
func (ex *execution) entry(e Entry) Entry {
	e.Path, e.Step, e.Type, e.Agent, e.Visit = ex.path, ex.id, ex.typ, ex.agent(), ex.visit
	return e
}

// note records an entry of the step and reports it as an event. The fields kind, duration, and lost come from ev.
func (ex *execution) note(ctx context.Context, e Entry, ev Event) error {
	e = ex.entry(e)
	if err := ex.run.record(ctx, &e); err != nil {
		return err
	}
	if e.Kind == EventStepStarted {
		ex.started = e.Seq
	}
	full := ex.event(e)
	full.Kind, full.Duration, full.Lost = cmp.Or(ev.Kind, full.Kind), ev.Duration, ev.Lost
	ex.run.emit(ctx, full)
	return nil
}

// event returns the event for an entry of the step.
func (ex *execution) event(e Entry) Event {
	ev := Event{
		Kind: e.Kind, Path: ex.path, Step: ex.id, Type: ex.typ, Agent: ex.agent(), Visit: ex.visit, Attempt: e.Attempt,
		Repeats: e.Repeats, Turns: e.Turns, Status: e.Status, Error: e.Error, Output: e.Output, Evidence: e.Evidence,
	}
	if e.Next != ex.nameOf(ex.index+1) {
		ev.Next = e.Next
	}
	return ev
}

// agent returns the name of the agent if the step has type agent.
func (ex *execution) agent() string {
	if b, ok := ex.body.(*agentBody); ok {
		return b.agent
	}
	return ""
}

// isCut reports whether an enclosing step ended ctx. Until the end of the enclosing step is recorded, a resumed run
// repeats the ended steps and needs their sandboxes.
func isCut(ctx context.Context) bool {
	cause := context.Cause(ctx)
	return errors.Is(cause, errStepTimeout) || errors.Is(cause, errSibling)
}

// closeInside closes the remaining isolated sandboxes of branches and items after the end of the attempt was recorded.
func (ex *execution) closeInside(ctx context.Context) {
	if isCut(ctx) {
		return
	}
	ex.run.leftover.Range(func(name, place any) bool {
		if isInside(place.(string), ex.path) {
			ex.run.leftover.Delete(name)
			ex.closeIsolated(ctx, name.(string))
		}
		return true
	})
}

// closeIsolated closes a sandbox only this step used.
func (ex *execution) closeIsolated(ctx context.Context, name string) {
	r := ex.run
	r.forgetFiles(name)
	if r.manager == nil || r.base.Retention > 0 || interrupted(ctx) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := r.manager.CloseSession(ctx, r.scope().Key(name), session.CloseOptions{}); err != nil {
		r.opts.Logger.Warn("cannot close an isolated sandbox yet, retrying at the end of the run",
			"run", r.result.RunID, "error", err)
	}
}
