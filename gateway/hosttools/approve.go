package hosttools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session/record"
)

// Approver decides whether a call is allowed.
type Approver interface {
	// Approve blocks until it has a decision or ctx is done. If no approver is available, the error wraps
	// ErrNoApprover. It must be safe for concurrent use.
	Approve(ctx context.Context, r ApprovalRequest) (Decision, error)
}

type approverKey struct{} // holds the Approver of a run

// WithApprover returns a context for runs whose calls are approved by a.
func WithApprover(ctx context.Context, a Approver) context.Context {
	return context.WithValue(ctx, approverKey{}, a)
}

// ApproverFromContext returns the approver of ctx, or nil if ctx has no approver.
func ApproverFromContext(ctx context.Context) Approver {
	a, _ := ctx.Value(approverKey{}).(Approver)
	return a
}

// ApproverFunc is a function with the method of Approver.
type ApproverFunc func(ctx context.Context, r ApprovalRequest) (Decision, error)

// Approve calls f.
func (f ApproverFunc) Approve(ctx context.Context, r ApprovalRequest) (Decision, error) {
	return f(ctx, r)
}

// ErrNoApprover means no approver is available.
var ErrNoApprover = errors.New("no approver is available")

// ApprovalRequest is a call waiting for a decision.
type ApprovalRequest struct {
	ID           string
	Server, Tool string
	Args         json.RawMessage // as passed to the tool
	ArgsSHA256   string          // hash of the tool and the arguments
	Caller       Caller
	Why          string // rule for the approval
}

// maxReviewedArgs is the maximum size of arguments for a person, in bytes.
const maxReviewedArgs = 4000

// TooLong reports whether the arguments are too long for a person to review. If so, it returns a refusing Decision.
func (r ApprovalRequest) TooLong() (Decision, bool) {
	return Decision{Note: "the arguments are too long to review"}, len(r.Args) > maxReviewedArgs
}

// Decision is the result of an approval request. It applies only to the call with these arguments, unless For is set.
type Decision struct {
	Allow bool
	Note  string // message for the caller; may be empty
	For   string // used only if Allow is set; empty means ForOnce
}

// Values of Decision.For.
const (
	ForOnce = "once"
	ForSame = "same" // also for later calls of the run with the same arguments
	ForTool = "tool" // also for all later calls of this tool in the run
)

// While a call waits for an approval, and then for a slot, the command's timeout is extended.
const (
	approvalWait   = 15 * time.Minute // maximum wait for a decision
	extensionEvery = 10 * time.Second
	// Extension granted in advance. A command outlives a dead host by at most this time.
	extensionAhead = 15 * time.Second
	leastExtension = time.Second // smaller extensions are not sent
)

// approved requests an approval if a rule requires it.
func (p *pass) approved(ctx context.Context) *Error {
	why := p.why
	if why == "" {
		return nil
	}
	tool := p.entry.tool
	if p.set.isApproved(p) {
		p.decision = approved
		return nil
	}
	p.decision = rejected
	rejected := func(format string, args ...any) *Error {
		fail := toolspec.Failf(toolspec.CodePermission, format, args...).WithRemediation(withoutCall)
		fail.Rule = why
		return fail
	}
	d, err := Decision{}, ErrNoApprover
	if p.approver() != nil {
		d, err = p.ask(ctx, why)
	}
	switch {
	case errors.Is(err, ErrNoApprover):
		return rejected("%s requires approval with these arguments, but %v", tool.FullName(), ErrNoApprover)
	case err == nil && d.Allow:
		p.decision = approved
		p.set.remember(p, d.For)
		return nil
	case err == nil && d.Note != "":
		return rejected("%s was not approved: %s", tool.FullName(), plain(d.Note, 1000))
	case err == nil:
		return rejected("%s was not approved", tool.FullName())
	case ctx.Err() != nil:
		return ended(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		return toolspec.Failf(toolspec.CodeTimeout, "no answer to the approval request for %s", tool.FullName()).
			WithRemediation(withoutCall)
	}
	p.set.r.o.Log.ErrorContext(ctx, "cannot request an approval", "tool", tool.FullName(), "error", err)
	return rejected("%s requires approval, but the approval request failed", tool.FullName())
}

func (p *pass) approver() Approver {
	by := p.Access
	if in := by.program.Load(); in != nil { // an interpreter has the access of its first program
		if latest, ok := p.set.latest.Load(*in); ok {
			by, _ = latest.(*Access)
		}
	}
	return cmp.Or(by.cmd.Approver, p.set.grant.Approver)
}

// asks returns the rule for an approval, or an empty string.
func (p *pass) asks(ctx context.Context) (string, *Error) {
	if p.entry.mustAsk {
		return "policy.ask", nil
	}
	wanted, err := holds(ctx, p.entry.ask, p.vars(p.before), false)
	switch {
	case ctx.Err() != nil:
		return "", ended(ctx)
	case err != nil: // if the condition cannot be evaluated, require approval
		p.unclear(ctx, err)
	case !wanted:
		return "", nil
	}
	return "ask", nil
}

// ask requests a decision, and extends the command's timeout until settle is called.
func (p *pass) ask(ctx context.Context, why string) (d Decision, err error) {
	open, stop := context.WithCancel(ctx)
	var extending sync.WaitGroup
	extending.Go(func() { p.extend(open) })
	p.asked, p.settle = true, sync.OnceFunc(func() { stop(); extending.Wait() })
	ctx, cancel := context.WithTimeout(ctx, approvalWait)
	defer cancel()
	defer bound.Recovered(ctx, p.set.r.o.Log, "an approver panicked", func() { d, err = Decision{}, errPanic })
	return p.approver().Approve(ctx, ApprovalRequest{
		ID: record.NewID(), Server: p.entry.tool.Server, Tool: p.entry.tool.Name,
		Args: slices.Clone(p.canonical), ArgsSHA256: p.sum, Caller: p.caller, Why: why,
	})
}

// extend extends the timeout of the command, and of programs if the command is an interpreter, until ctx is done.
func (p *pass) extend(ctx context.Context) {
	if p.cmd.Extend == nil {
		return
	}
	waiting := map[string]*overtime{} // by exec id
	begin := func(key, value any) bool {
		id, _ := key.(string)
		if o, _ := value.(*overtime); waiting[id] == nil {
			o.begin()
			waiting[id] = o
		}
		return true
	}
	begin(p.caller.ExecID, &p.overtime)
	defer func() {
		for _, o := range waiting {
			o.end()
		}
	}()
	told := false
	tick := time.NewTicker(extensionEvery)
	defer tick.Stop()
	for {
		if p.program.Load() != nil { // another program may have started
			p.set.programs.Range(begin)
		}
		for id, o := range waiting {
			by := o.due()
			if by == 0 {
				continue
			}
			err := p.cmd.Extend(ctx, id, by)
			if err == nil || ctx.Err() != nil && errors.Is(err, ctx.Err()) { // a canceled extension may be granted
				continue
			}
			o.repeat(by)
			if id == p.caller.ExecID && !told {
				told = true
				p.set.r.o.Log.WarnContext(ctx, "cannot extend the time of a command that waits for an approval",
					"exec", id, "error", err)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// overtime tracks the waits of a command for approvals, and the granted extensions. Approvals may be concurrent or
// sequential.
type overtime struct {
	mu            sync.Mutex
	asked         int       // number of open approvals
	since         time.Time // time when asked became positive
	waited, given time.Duration
}

func (o *overtime) begin() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.asked++; o.asked == 1 {
		o.since = time.Now()
	}
}

func (o *overtime) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.asked--; o.asked == 0 {
		o.waited += time.Since(o.since)
	}
}

// total returns the time of all waits.
func (o *overtime) total() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.asked == 0 {
		return o.waited
	}
	return o.waited + time.Since(o.since)
}

// due returns the extension for the command now, and counts it as given. It returns zero if the extension is too small.
func (o *overtime) due() time.Duration {
	o.mu.Lock()
	defer o.mu.Unlock()
	by := o.waited + time.Since(o.since) + extensionAhead - o.given
	if by < leastExtension {
		return 0
	}
	o.given += by
	return by
}

// repeat makes a failed extension due again.
func (o *overtime) repeat(by time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.given -= by
}

// isApproved reports whether an earlier decision covers this call.
func (s *Set) isApproved(p *pass) bool {
	s.tally.mu.Lock()
	defer s.tally.mu.Unlock()
	return s.tally.approved[p.entry.tool.FullName()] || s.tally.approved[p.sum]
}

// remember stores an approval for later calls.
func (s *Set) remember(p *pass, about string) {
	s.tally.mu.Lock()
	defer s.tally.mu.Unlock()
	switch about {
	case ForSame:
		s.tally.approved[p.sum] = true
	case ForTool:
		s.tally.approved[p.entry.tool.FullName()] = true
	}
}
