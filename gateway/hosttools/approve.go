package hosttools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session/record"
)

// Approver asks somebody whether a call may be made.
type Approver interface {
	// Approve blocks until there is an answer or ctx ends. It may be called concurrently.
	Approve(ctx context.Context, r ApprovalRequest) (Decision, error)
}

// ApprovalRequest is a call that waits for an answer.
type ApprovalRequest struct {
	ID           string
	Server, Tool string
	Args         json.RawMessage // as the tool will get them
	ArgsSHA256   string          // of the tool and the arguments
	Caller       Caller
	Why          string // the rule that asks
}

// maxReviewedArgs is how many bytes of arguments a person can review.
const maxReviewedArgs = 4000

// TooLong reports whether a person cannot review the arguments, with the decision that then refuses the call.
func (r ApprovalRequest) TooLong() (Decision, bool) {
	return Decision{Note: "the arguments are too long to review"}, len(r.Args) > maxReviewedArgs
}

// Decision is an answer. It is about the arguments of the request alone, unless For says otherwise.
type Decision struct {
	Allow bool
	Note  string // for the caller; may be empty
	For   string // ForOnce when empty; counts for an approval alone
}

// Values of Decision.For.
const (
	ForOnce = "once"
	ForSame = "same" // also for later calls of the run with the same arguments
	ForTool = "tool" // also for later calls of the run of the same tool
)

// While somebody is asked, the command gets more time, so that waiting costs it none.
const (
	approvalWait   = 15 * time.Minute // after which nobody answers any more
	extensionEvery = 10 * time.Second
	extensionAhead = 15 * time.Second // how much of it the command has in advance: a host that dies costs no more than that
	leastExtension = time.Second      // worth a message
)

// approved asks for an approval when a rule wants one.
func (p *pass) approved(ctx context.Context) *Error {
	why := p.why
	if why == "" {
		return nil
	}
	tool := p.entry.tool
	if p.set.isApproved(p) {
		p.decision = Approved
		return nil
	}
	p.decision = Rejected
	rejected := func(format string, args ...any) *Error {
		fail := toolspec.Failf(toolspec.CodePermission, format, args...).WithRemediation("Continue without this call, or describe its purpose in the answer.")
		fail.Rule = why
		return fail
	}
	if p.approver() == nil {
		return rejected("%s requires approval with these arguments, but no approver is available", tool.FullName())
	}
	d, err := p.ask(ctx, why)
	switch {
	case err == nil && d.Allow:
		p.decision = Approved
		p.set.remember(p, d.For)
		return nil
	case err == nil && d.Note != "":
		return rejected("%s was not approved: %s", tool.FullName(), plain(d.Note, 1000))
	case err == nil:
		return rejected("%s was not approved", tool.FullName())
	case ctx.Err() != nil:
		return ended(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		return toolspec.Failf(toolspec.CodeTimeout, "no answer to the approval request for %s", tool.FullName())
	}
	p.set.r.o.Log.ErrorContext(ctx, "cannot request an approval", "tool", tool.FullName(), "error", err)
	return rejected("%s requires approval, but the approval request failed", tool.FullName())
}

func (p *pass) approver() Approver { return cmp.Or(p.cmd.Approver, p.set.grant.Approver) }

// asks returns the rule that requires an approval, or an empty string.
func (p *pass) asks(ctx context.Context) (string, *Error) {
	if p.entry.mustAsk {
		return "policy.ask", nil
	}
	holds, err := p.entry.ask.holds(ctx, p.vars(p.before), false)
	switch {
	case ctx.Err() != nil:
		return "", ended(ctx)
	case err != nil: // what cannot be decided is asked
		p.unclear(ctx, err)
	case !holds:
		return "", nil
	}
	return "ask", nil
}

// ask asks, and gives the command time until there is an answer.
func (p *pass) ask(ctx context.Context, why string) (d Decision, err error) {
	ctx, cancel := context.WithTimeout(ctx, approvalWait)
	defer cancel()
	extended := make(chan struct{})
	go func() {
		defer close(extended)
		p.extend(ctx)
	}()
	defer func() {
		cancel()
		<-extended
	}()
	defer func() {
		if r := recover(); r != nil {
			p.set.r.o.Log.ErrorContext(ctx, "an approver panicked", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			d, err = Decision{}, errPanic
		}
	}()
	return p.approver().Approve(ctx, ApprovalRequest{
		ID: record.NewID(), Server: p.entry.tool.Server, Tool: p.entry.tool.Name, Args: slices.Clone(p.canonical), ArgsSHA256: p.sum, Caller: p.caller, Why: why,
	})
}

// extend gives the command time until ctx ends.
func (p *pass) extend(ctx context.Context) {
	if p.cmd.Extend == nil {
		return
	}
	p.overtime.begin()
	defer p.overtime.end()
	tick := time.NewTicker(extensionEvery)
	defer tick.Stop()
	for {
		if by := p.overtime.due(); by > 0 {
			if err := p.cmd.Extend(ctx, p.caller.ExecID, by); err != nil && ctx.Err() == nil {
				p.set.r.o.Log.WarnContext(ctx, "cannot extend the time of a command that waits for an approval", "exec", p.caller.ExecID, "error", err)
				return
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// overtime is what a command waited for approvals and what it was given for that, however many it waits for at once,
// and one after the other.
type overtime struct {
	mu            sync.Mutex
	asked         int       // approvals that are open
	since         time.Time // when there were none
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

// due returns what the command is to be given now, if that is worth it, and counts it as given.
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

// isApproved reports whether an earlier answer is about this call, too.
func (s *Set) isApproved(p *pass) bool {
	s.tally.mu.Lock()
	defer s.tally.mu.Unlock()
	return s.tally.approved[p.entry.tool.FullName()] || s.tally.approved[p.sum]
}

// remember keeps an approval that is about later calls.
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
