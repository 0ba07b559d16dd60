package hosttools

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
)

// maxWait is the maximum wait of a call for the rate limit and for a slot.
const maxWait = 5 * time.Second

// Command is the command whose code calls tools.
type Command struct {
	SandboxID string
	Files     Files // destination for large results; if nil, large results are refused
	// Extend extends the command's timeout while a call waits for an approval, and then for a slot. If nil, the timeout
	// is not extended.
	Extend func(ctx context.Context, execID string, by time.Duration) error
	// Approver overrides the grant's approver. If nil, the grant's approver is used.
	Approver Approver
	// Settings are the settings of the command, for the audit log.
	Settings sandbox.Settings
}

// Access is one command's access to a set. It is safe for concurrent use.
type Access struct {
	set *Set
	cmd Command

	overtime overtime
	program  atomic.Pointer[string] // interpreter whose program has the access; nil for other commands
	counts   counter
	saved    []string // result files without a name from a caller; guarded by counts.mu
}

// Access returns the access for a command. The command may use several connections.
func (s *Set) Access(cmd Command) *Access { return &Access{set: s, cmd: cmd} }

// Program registers the command of a program that runs in an interpreter of the sandbox. The calls of the program come
// from the interpreter, and the approver of a decides about them. If they wait for approvals, the timeout of the
// program is also extended, until the caller calls ended.
func (a *Access) Program(interpreter, execID string) (ended func()) {
	interpreter = a.cmd.SandboxID + " " + interpreter
	a.set.latest.Store(interpreter, a) // first, because code in the interpreter may already call tools
	a.program.Store(&interpreter)
	a.set.programs.Store(execID, &overtime{})
	return func() { a.set.programs.Delete(execID) }
}

// Request is a call from a sandbox.
type Request struct {
	Tool        string // name in the sandbox, or "server.tool"
	Args        json.RawMessage
	Save        string // file below /workspace for the result; if empty, the reply contains small results
	TraceParent string // caller's span
}

// Reply is the result of a call.
type Reply struct {
	Data  json.RawMessage // result, or a description of the file with the result
	Text  string          // result if Data is empty
	Files []Saved         // additional files
	Error *Error          // set if the call failed
	// RetryAfter is the time after which the caller may repeat a call refused for lack of capacity.
	RetryAfter time.Duration
}

// pass is the state of a call during the checks.
type pass struct {
	*Access
	req       Request
	entry     *entry
	caller    Caller
	args      map[string]any
	canonical json.RawMessage
	why       string // rule for an approval
	before    calls  // number of earlier calls in the run
	sum       string
	decision  string
	asked     bool   // a decision was requested for this call
	settle    func() // ends the extension of the command's timeout
}

// Call calls a tool for a command. span is the command's span.
func (a *Access) Call(ctx context.Context, execID string, span trace.SpanContext, req Request) Reply {
	if !a.set.begin() {
		return Reply{Error: runEnded()}
	}
	defer a.set.running.Done()
	if a.set.tally.refused.Load() >= maxRefused {
		return Reply{Error: toolspec.Failf(toolspec.CodeQuota, "too many refused host tool calls in this run").
			WithRemediation(noMoreCalls)}
	}
	ctx, cancel := context.WithCancelCause(runContext{ctx, a.set.life})
	defer cancel(nil)
	defer context.AfterFunc(a.set.life, func() { cancel(errSetClosed) })()
	p := &pass{Access: a, req: req, decision: denied, settle: func() {}}
	p.caller = a.set.grant.Caller
	p.caller.ExecID, p.caller.SandboxID = execID, a.cmd.SandboxID
	// 1: grant. The error for a tool without a grant is the same as for an unknown tool.
	if p.entry = a.set.byName[req.Tool]; p.entry == nil {
		fail := toolspec.Failf(toolspec.CodeNotFound, "unknown tool %q", plain(a.set.fullName(req.Tool), 80)).
			WithRemediation("Use the tools that `tools ls` lists.")
		if near, ok := suggest.Closest(plain(req.Tool, 80), slices.Collect(maps.Keys(a.set.byName))); ok {
			name := a.set.byName[near].tool.FullName() // as in programs and commands
			fail.Remediation = fmt.Sprintf("Did you mean %q? `tools ls` lists the tools.", name)
		}
		return p.finish(ctx, nil, Reply{Error: fail})
	}
	ctx, s := p.start(ctx, span)
	return p.finish(ctx, s, p.perform(ctx))
}

// fullName returns the name of an unknown tool as in programs and commands, if the server is known.
func (s *Set) fullName(name string) string {
	for _, e := range s.sorted {
		if rest, ok := strings.CutPrefix(name, safeName(e.tool.Server+"_")); ok {
			return e.tool.Server + "." + rest
		}
	}
	return name
}

// runContext is the context of a call. It is done when the call's connection ends. It has the values of the run, for
// example the audit file and the run itself.
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

// perform runs all checks after the first one, and then the tool.
func (p *pass) perform(ctx context.Context) Reply {
	if fail := p.read(ctx); fail != nil { // checks 2 and 3
		return Reply{Error: fail}
	}
	if fail := p.permitted(ctx); fail != nil { // checks 4 and 5
		return Reply{Error: fail}
	}
	// Release the memory, because args are much larger than their text and the call may wait long.
	p.args = nil
	rate, slots := p.set.tally.rate, p.set.tally.slots[p.caller.Depth-1]
	refuse := func(fail *Error, retry time.Duration) Reply {
		p.decision = denied
		p.set.giveBack(p.entry) // the call was not made and may be repeated
		return Reply{Error: fail, RetryAfter: retry}
	}
	left, fail := p.queue(ctx, maxWait, rate.Wait) // check 6
	if fail != nil {
		return refuse(fail, maxWait)
	}
	p.decision = allowed
	fail = p.approved(ctx) // check 7
	defer p.settle()
	if fail != nil {
		return Reply{Error: fail}
	}
	if p.asked {
		left = approvalWait // a refusal would waste the approval
	}
	// The call needs no slot before, because an approval may take long.
	if _, fail := p.queue(ctx, left, func(ctx context.Context) error { return bound.Enter(ctx, slots) }); fail != nil {
		return refuse(fail, time.Second)
	}
	p.settle()
	release := func() { <-slots }
	if err := p.note(ctx, audit.Allowed, ""); err != nil {
		release()
		const message = "cannot record a call"
		p.set.r.o.Log.ErrorContext(ctx, message, "tool", p.entry.tool.FullName(), "error", err)
		return Reply{Error: toolspec.Failf(toolspec.CodeInternal, message)}
	}
	res, fail := p.run(ctx, release) // step 8; releases the slot when the handler returns
	if fail != nil {
		return Reply{Error: fail}
	}
	return p.deliver(ctx, res) // step 9
}

// read parses the arguments and checks them against the schema.
func (p *pass) read(ctx context.Context) *Error {
	if bound.Enter(ctx, p.set.reading) != nil { // limited, because large arguments need time and memory
		return ended(ctx)
	}
	defer func() { <-p.set.reading }()
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

// permitted checks policy and conditions, and counts the call.
func (p *pass) permitted(ctx context.Context) *Error {
	name := p.entry.tool.FullName()
	denied := func(rule, format string, args ...any) *Error {
		fail := toolspec.Failf(toolspec.CodePermission, format, args...).
			WithRemediation("Continue without this call: the host's rules cannot be changed from the sandbox.")
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
	allowed, err := holds(ctx, p.entry.when, p.vars(p.set.calls(p.entry)), true)
	switch {
	case ctx.Err() != nil:
		return ended(ctx)
	case err != nil:
		p.unclear(ctx, err)
		return denied("when", "cannot evaluate the condition of %s with these arguments", name)
	case !allowed:
		return denied("when", "%s is not allowed with these arguments", name)
	}
	if p.before, fail = p.set.reserve(p.entry); fail != nil {
		return fail
	}
	p.why, fail = p.asks(ctx)
	return fail
}

// deciding waits until no condition is being evaluated for another call of the run. The caller must call done
// afterwards. Otherwise, concurrent calls would all see the same number of earlier calls.
func (p *pass) deciding(ctx context.Context) (done func(), fail *Error) {
	if p.entry.when == nil {
		return func() {}, nil
	}
	if bound.Enter(ctx, p.set.tally.deciding) != nil {
		return nil, ended(ctx)
	}
	return func() { <-p.set.tally.deciding }, nil
}

// unclear logs a failed evaluation of a condition, at most once per tool and run, to keep code in the sandbox from
// filling the log.
func (p *pass) unclear(ctx context.Context, err error) {
	p.entry.unclear.Do(func() {
		p.set.r.o.Log.WarnContext(ctx, "cannot evaluate a condition of a host tool",
			"tool", p.entry.tool.FullName(), "error", err)
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

// queue waits until get returns, at most for the time limit, and returns the remaining time.
func (p *pass) queue(
	ctx context.Context, limit time.Duration, get func(context.Context) error,
) (left time.Duration, fail *Error) {
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := time.Now()
	err := get(wait)
	took := time.Since(began)
	p.counts.wait(took)
	switch {
	case err == nil:
		return limit - took, nil
	case ctx.Err() != nil:
		return 0, ended(ctx)
	}
	return 0, toolspec.Failf(toolspec.CodeCapacity, "too many concurrent host tool calls").
		WithRemediation("Wait, then call again with fewer concurrent calls.")
}

// outcome is the result of a handler.
type outcome struct {
	res Result
	err error
}

// errPanic means a handler panicked.
var errPanic = errors.New("the handler panicked")

// run runs the handler with the time limit. Above the limit, the handler keeps the slot until it returns.
func (p *pass) run(ctx context.Context, release func()) (Result, *Error) {
	limit := time.Duration(p.set.limits.Seconds) * time.Second
	within, cancel := context.WithTimeout(ctx, limit)
	ended := make(chan outcome, 1)
	p.set.running.Add(1) // cannot reach zero before, because the call itself is counted
	go func() {          // Close waits for this goroutine
		defer p.set.running.Done()
		defer release()
		defer cancel()
		ended <- p.handle(within)
	}()
	var o outcome
	select {
	case o = <-ended:
	case <-within.Done():
		select { // both channels may be ready
		case o = <-ended:
		default:
			o.err = within.Err()
		}
	}
	return o.res, p.failure(ctx, within, o)
}

func (p *pass) handle(ctx context.Context) (o outcome) {
	defer bound.Recovered(ctx, p.set.r.o.Log, "a host tool panicked", func() { o = outcome{err: errPanic} },
		"tool", p.entry.tool.FullName())
	ctx = context.WithValue(ctx, setKey{}, p.set)
	o.res, o.err = p.entry.tool.Handle(ctx, Call{Args: p.canonical, Caller: p.caller})
	return o
}

// failure returns the error for the caller, or nil on success.
func (p *pass) failure(ctx, within context.Context, o outcome) *Error {
	name := p.entry.tool.FullName()
	var known *Error
	switch {
	case o.err == nil && !o.res.Failed:
		return nil
	case o.err == nil:
		text := cmp.Or(o.res.Text, string(o.res.Data[:min(len(o.res.Data), maxFailureText)]))
		return toolspec.Failf(toolspec.CodeToolFailed, "%s failed: %s", name, plain(text, maxFailureText))
	case errors.Is(o.err, errPanic):
		return toolspec.Failf(toolspec.CodeInternal, "%s failed unexpectedly", name)
	case errors.As(o.err, &known):
		copied := *known // copied because the handler may keep a reference
		return &copied
	case ctx.Err() != nil:
		return ended(ctx)
	case errors.Is(within.Err(), context.DeadlineExceeded): // Canceled would only mean the handler has returned
		return toolspec.Failf(toolspec.CodeTimeout, "%s timed out after %d seconds", name, p.set.limits.Seconds).
			WithRemediation("Request less in one call. The call may have had an effect.")
	}
	p.set.r.o.Log.WarnContext(ctx, "a host tool failed", "tool", name, "error", o.err)
	return toolspec.Failf(toolspec.CodeToolFailed, "%s failed", name)
}

// maxFailureText is the maximum size of a tool's error message in a reply.
const maxFailureText = 4 << 10

// ended returns the error for a call whose context is done.
func ended(ctx context.Context) *Error {
	if errors.Is(context.Cause(ctx), errSetClosed) {
		return runEnded()
	}
	return toolspec.Failf(toolspec.CodeClosed, "the call was canceled").
		WithRemediation("Call again if you still need the result. The call may have had an effect.")
}

func runEnded() *Error {
	return toolspec.Failf(toolspec.CodeClosed, "the run has ended").WithRemediation("Stop calling host tools.")
}
