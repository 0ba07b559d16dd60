package hosttools

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
)

// maxWait is how long a call waits for its turn: for the rate, and for a slot.
const maxWait = 5 * time.Second

// Command is the command whose code calls tools.
type Command struct {
	SandboxID string
	Files     Files // where large results go; nil: they are refused
	// Extend gives the command more time while somebody is asked. Nil: it does not get any.
	Extend func(ctx context.Context, execID string, by time.Duration) error
	// Approver is asked in the place of the grant's. Nil: the grant's is.
	Approver Approver
	// Settings are the settings of the command, for the audit log.
	Settings sandbox.Settings
}

// Access is one command's access to a set. It is safe for concurrent use.
type Access struct {
	set *Set
	cmd Command

	overtime overtime
	counts   counter
	saved    []string // results in files that no caller named; counts.mu guards it
}

// Access returns the access of a command, which may have more than one connection.
func (s *Set) Access(cmd Command) *Access { return &Access{set: s, cmd: cmd} }

// Set returns the set.
func (a *Access) Set() *Set { return a.set }

// Request is a call as it comes from inside.
type Request struct {
	Tool        string // its name inside, or "server.tool"
	Args        json.RawMessage
	Save        string // where below /workspace the result is to be written; empty: where it fits
	TraceParent string // of the caller's span
}

// Reply is the answer to a call.
type Reply struct {
	Data  json.RawMessage // the result, or what is known of the file that has it
	Text  string          // the result when Data is empty
	Files []Saved         // further files
	Error *Error          // set when the call failed
	// RetryAfter is when a call that found no capacity may be tried again.
	RetryAfter time.Duration
}

// pass is a call on its way through the checks.
type pass struct {
	*Access
	req       Request
	entry     *entry
	caller    Caller
	args      map[string]any
	canonical json.RawMessage
	why       string // the rule that requires an approval
	before    calls  // the run's, when this one was counted
	sum       string
	decision  string
	retry     time.Duration
}

// Call lets a command call a tool. span is that of the command.
func (a *Access) Call(ctx context.Context, execID string, span trace.SpanContext, req Request) Reply {
	if !a.set.begin() {
		return Reply{Error: toolspec.Failf(toolspec.CodeClosed, "the run has ended")}
	}
	defer a.set.running.Done()
	if a.set.refused.Load() >= maxRefused {
		return Reply{Error: toolspec.Failf(toolspec.CodeQuota, "too many refused host tool calls in this run").WithRemediation(noMoreCalls)}
	}
	ctx, cancel := context.WithCancelCause(runContext{ctx, a.set.life})
	defer cancel(nil)
	defer context.AfterFunc(a.set.life, func() { cancel(errSetClosed) })()
	p := &pass{Access: a, req: req, decision: Denied}
	p.caller = a.set.grant.Caller
	p.caller.ExecID, p.caller.SandboxID = execID, a.cmd.SandboxID
	// 1: what is not granted does not exist.
	if p.entry = a.set.byName[req.Tool]; p.entry == nil {
		fail := toolspec.Failf(toolspec.CodeNotFound, "unknown tool %q", plain(req.Tool, 80)).
			WithRemediation("Use the tools that `tools ls` lists.")
		if near, ok := suggest.Closest(plain(req.Tool, 80), slices.Collect(maps.Keys(a.set.byName))); ok {
			fail.Remediation = fmt.Sprintf("Did you mean %q? `tools ls` lists the tools.", near)
		}
		return p.finish(ctx, nil, Reply{Error: fail})
	}
	ctx, s := p.start(ctx, span)
	return p.finish(ctx, s, p.perform(ctx))
}

// runContext is the context of a call, which ends with its connection, with the values of the run: the audit file, the
// run itself.
type runContext struct {
	context.Context
	run context.Context
}

func (c runContext) Value(key any) any {
	if v := c.Context.Value(key); v != nil {
		return v
	}
	return c.run.Value(key)
}

var errSetClosed = errors.New("the run has ended")

// perform takes the call through the checks behind the first.
func (p *pass) perform(ctx context.Context) Reply {
	if fail := p.read(ctx); fail != nil { // 2 and 3
		return Reply{Error: fail}
	}
	if fail := p.permitted(ctx); fail != nil { // 4 and 5
		return Reply{Error: fail}
	}
	p.args = nil                 // which are much larger than their text, and it may wait for long
	release, fail := p.turn(ctx) // 6
	if fail != nil {
		p.set.giveBack(p.entry) // it was not made, and may be tried again
		return Reply{Error: fail, RetryAfter: p.retry}
	}
	kept := false // by a handler that goes on
	defer func() {
		if !kept {
			release()
		}
	}()
	p.decision = Allowed
	if fail := p.approved(ctx); fail != nil { // 7
		return Reply{Error: fail}
	}
	if err := p.note(ctx, audit.Allowed, ""); err != nil {
		return Reply{Error: p.internal(ctx, "cannot record a call", err)}
	}
	kept = true
	res, fail := p.run(ctx, release) // 8
	if fail != nil {
		return Reply{Error: fail}
	}
	return p.deliver(ctx, res) // 9
}

// read reads the arguments and holds them against the schema.
func (p *pass) read(ctx context.Context) *Error {
	select { // large arguments take time and memory
	case p.set.reading <- struct{}{}:
		defer func() { <-p.set.reading }()
	case <-ctx.Done():
		return ended(ctx)
	}
	var fail *Error
	if p.args, p.canonical, fail = readArgs(p.req.Args, p.set.limits.ArgKB<<10); fail != nil {
		return fail
	}
	sum := sha256.Sum256(append([]byte(p.entry.tool.FullName()+"\x00"), p.canonical...))
	p.sum = hex.EncodeToString(sum[:])
	if fail := p.entry.validate(p.args); fail != nil {
		return fail
	}
	return checkSave(p.req.Save)
}

// permitted asks policy and conditions, and counts the call.
func (p *pass) permitted(ctx context.Context) *Error {
	name := p.entry.tool.FullName()
	denied := func(rule, format string, args ...any) *Error {
		fail := toolspec.Failf(toolspec.CodePermission, format, args...).WithRemediation("Continue without this call: the host's rules cannot be changed from the sandbox.")
		fail.Rule = rule
		return fail
	}
	if p.caller.Depth > maxDepth {
		return denied("depth", "nested runs exceed the limit of %d levels", maxDepth)
	}
	if p.entry.deny {
		return denied("policy.deny", "the host's policy denies %s", name)
	}
	done, fail := p.deciding(ctx)
	if fail != nil {
		return fail
	}
	defer done()
	holds, err := p.entry.when.holds(ctx, p.vars(p.set.calls(p.entry)), true)
	switch {
	case ctx.Err() != nil:
		return ended(ctx)
	case err != nil:
		p.unclear(ctx, err)
		return denied("when", "cannot evaluate the condition of %s with these arguments", name)
	case !holds:
		return denied("when", "%s is not allowed with these arguments", name)
	}
	if p.before, fail = p.set.reserve(p.entry); fail != nil {
		return fail
	}
	p.why, fail = p.asks(ctx)
	return fail
}

// deciding waits until no other call of the run is being decided on by a condition, until done is called: calls that
// come at once would all see the same number of calls before them.
func (p *pass) deciding(ctx context.Context) (done func(), fail *Error) {
	if p.entry.when == nil {
		return func() {}, nil
	}
	select {
	case p.set.tally.deciding <- struct{}{}:
		return func() { <-p.set.tally.deciding }, nil
	case <-ctx.Done():
		return nil, ended(ctx)
	}
}

// unclear reports a condition that cannot be evaluated, once a tool and run: code inside can have it so as often as it
// likes.
func (p *pass) unclear(ctx context.Context, err error) {
	p.entry.unclear.Do(func() {
		p.set.r.o.Log.WarnContext(ctx, "cannot evaluate a condition of a host tool", "tool", p.entry.tool.FullName(), "error", err)
	})
}

// vars returns the variables of conditions.
func (p *pass) vars(before calls) map[string]any {
	c := p.caller
	return map[string]any{
		"args": p.args, "tool": p.entry.vars, "calls": map[string]any{"total": before.total, "tool": before.tool},
		"run": map[string]any{"id": c.Run, "workflow": c.Workflow, "agent": c.Agent, "step": c.Step},
	}
}

// turn waits for the rate and for a slot, which release returns.
func (p *pass) turn(ctx context.Context) (release func(), fail *Error) {
	wait, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	began := time.Now()
	defer func() { p.counts.wait(time.Since(began)) }()
	p.retry = maxWait
	if p.set.rate.Wait(wait) == nil {
		p.retry = time.Second
		select {
		case p.set.slots <- struct{}{}:
			return func() { <-p.set.slots }, nil
		case <-wait.Done():
		}
	}
	if ctx.Err() != nil {
		return nil, ended(ctx)
	}
	return nil, toolspec.Failf(toolspec.CodeCapacity, "too many concurrent host tool calls").
		WithRemediation("Wait, then call again with fewer concurrent calls.")
}

// outcome is what a handler returned.
type outcome struct {
	res Result
	err error
}

// errPanic: a handler panicked.
var errPanic = errors.New("the handler panicked")

// run runs the handler with its time limit. A handler that goes on after it keeps its slot until it returns.
func (p *pass) run(ctx context.Context, release func()) (Result, *Error) {
	limit := time.Duration(p.set.limits.Seconds) * time.Second
	within, cancel := context.WithTimeout(ctx, limit)
	ended := make(chan outcome, 1)
	p.set.running.Add(1) // the call itself is one already
	go func() {          // Close waits for it
		defer p.set.running.Done()
		defer release()
		defer cancel()
		ended <- p.handle(within)
	}()
	select {
	case o := <-ended:
		return o.res, p.failure(ctx, within, o)
	case <-within.Done():
	}
	select { // both may be there
	case o := <-ended:
		return o.res, p.failure(ctx, within, o)
	default:
		return Result{}, p.failure(ctx, within, outcome{err: within.Err()})
	}
}

func (p *pass) handle(ctx context.Context) (o outcome) {
	defer func() {
		if r := recover(); r != nil {
			p.set.r.o.Log.ErrorContext(ctx, "a host tool panicked", "tool", p.entry.tool.FullName(), "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			o = outcome{err: errPanic}
		}
	}()
	res, err := p.entry.tool.Handle(context.WithValue(ctx, callerKey{}, p.caller), Call{Args: p.canonical, Caller: p.caller})
	return outcome{res, err}
}

// failure returns what an outcome is to the caller; nil for a success.
func (p *pass) failure(ctx, within context.Context, o outcome) *Error {
	name := p.entry.tool.FullName()
	var known *Error
	switch {
	case o.err == nil && !o.res.Failed:
		return nil
	case o.err == nil:
		text := o.res.Text
		if text == "" {
			text = string(o.res.Data[:min(len(o.res.Data), maxFailureText)])
		}
		return toolspec.Failf(toolspec.CodeToolFailed, "%s failed: %s", name, plain(text, maxFailureText))
	case errors.Is(o.err, errPanic):
		return toolspec.Failf(toolspec.CodeInternal, "%s failed unexpectedly", name)
	case errors.As(o.err, &known):
		copied := *known // one that a handler may hold on to
		return &copied
	case ctx.Err() != nil:
		return ended(ctx)
	case errors.Is(within.Err(), context.DeadlineExceeded): // not the end of what has returned
		return toolspec.Failf(toolspec.CodeTimeout, "%s timed out after %d seconds", name, p.set.limits.Seconds).
			WithRemediation("Request less in one call. The call may have had an effect.")
	}
	p.set.r.o.Log.WarnContext(ctx, "a host tool failed", "tool", name, "error", o.err)
	return toolspec.Failf(toolspec.CodeToolFailed, "%s failed", name)
}

// maxFailureText is how much of a tool's own words about its failure is repeated.
const maxFailureText = 4 << 10

func (p *pass) internal(ctx context.Context, message string, err error) *Error {
	p.set.r.o.Log.ErrorContext(ctx, message, "tool", p.entry.tool.FullName(), "error", err)
	return toolspec.Failf(toolspec.CodeInternal, "%s", message)
}

// ended returns what a call is told whose context is over.
func ended(ctx context.Context) *Error {
	if errors.Is(context.Cause(ctx), errSetClosed) {
		return toolspec.Failf(toolspec.CodeClosed, "the run has ended")
	}
	return toolspec.Failf(toolspec.CodeClosed, "the call was cancelled")
}
