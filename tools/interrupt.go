package tools

import (
	"context"
	"sync"

	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/interrupt"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// Metadata keys of the interrupt requesting an approval, and of the restart.
const (
	metaApproval  = "approval"   // id of the approval; in both
	metaExec      = "exec_id"    // id of the waiting command
	metaSandbox   = "sandbox_id" // sandbox of the command
	metaTool      = "tool"       // tool the code calls
	metaArguments = "arguments"
	metaAllow     = "allow" // in the restart: whether the call is allowed
	metaFor       = "for"   // in the restart: scope of the approval, default hosttools.ForOnce
)

// interruptible runs a tool. If code the tool runs needs an approval, it interrupts the call. The restart delivers the
// decision and continues to wait for the same command.
func (b *binding) interruptible(tc *ai.ToolContext, do func(context.Context) (any, error)) (any, error) {
	owner := b.run(tc).Scope() // only the same run may answer
	if id, ok := tc.Resumed[metaApproval].(string); ok {
		round, ok := b.box.rounds.Take(id, owner)
		if !ok {
			return toolspec.Result{Error: toolspec.Failf(toolspec.CodeNotFound, "this approval is no longer pending").
				WithRemediation("Run the code again if it is still needed.")}, nil
		}
		allow, _ := tc.Resumed[metaAllow].(bool)
		about, _ := tc.Resumed[metaFor].(string)
		round.Questions[0].Answer(hosttools.Decision{Allow: allow, For: about})
		return b.box.await(tc, owner, round.Job)
	}
	if hosttools.ApproverFromContext(tc) != nil || !b.box.plugin.ApprovalInterrupts || b.hosts == nil {
		return do(tc)
	}
	return b.box.await(tc, owner, interrupt.Start(tc, b.interrupted.begin, do))
}

// await waits until a job ends, or interrupts the call for the job's next approval.
func (t *toolbox) await(tc *ai.ToolContext, owner record.Scope, job *interrupt.Job[any]) (any, error) {
	q, out, err := job.Wait(tc)
	if q == nil {
		return out, err
	}
	t.rounds.Keep(q.ID, owner, interrupt.Round[*interrupt.Job[any]]{Job: job, Questions: []*interrupt.Question{q}})
	return nil, tc.Interrupt(&ai.InterruptOptions{Metadata: map[string]any{
		metaApproval: q.ID, metaExec: q.Caller.ExecID, metaSandbox: q.Caller.SandboxID, metaTool: q.Server + "." + q.Tool,
		metaArguments: string(q.Args),
	}})
}

// outlast waits until a command has ended if its calls have interrupted the tool call, because the host tools of an
// interrupted call end with the call. Otherwise, it returns res.
func outlast(ctx context.Context, s *session.Session, res sandbox.ExecResult) (sandbox.ExecResult, error) {
	job, interruptible := hosttools.ApproverFromContext(ctx).(*interrupt.Job[any])
	if !interruptible || res.Done() || !job.Asked() {
		return res, nil
	}
	last, err := s.Command(res.ExecID).Wait(ctx, -1)
	last.Timeout = res.Timeout
	if err != nil {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		_ = s.KillCommands(clean, []string{res.ExecID}) // like a canceled Exec
	}
	return last, err
}

// pending counts the calls with a binding beyond the end of its Generate call.
type pending struct {
	mu    sync.Mutex // guards the fields below
	count int
	then  func(late bool) // called when count becomes zero
}

func (p *pending) begin() (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.count++
	return p.end
}

func (p *pending) end() {
	p.mu.Lock()
	p.count--
	var then func(bool)
	if p.count == 0 {
		then, p.then = p.then, nil
	}
	p.mu.Unlock()
	if then != nil {
		go then(true) // then waits for the current call, so it cannot run synchronously; it has its own timeout
	}
}

// ending reports whether the cleanup waits for the last call. The cleanup ends the interpreters with access to host
// tools.
func (p *pending) ending() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.then != nil
}

// after runs cleanup now, or late, when no call is pending.
func (p *pending) after(cleanup func(late bool)) {
	p.mu.Lock()
	if p.count > 0 {
		p.then, cleanup = cleanup, nil
	}
	p.mu.Unlock()
	if cleanup != nil {
		cleanup(false)
	}
}
