package tools

import (
	"context"
	"sync"

	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/interrupt"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session/record"
)

// Metadata of the interrupt that asks for an approval, and of its restart.
const (
	metaApproval  = "approval"   // id of the approval; both
	metaExec      = "exec_id"    // the command that waits
	metaSandbox   = "sandbox_id" // its sandbox
	metaTool      = "tool"       // what it wants to call
	metaArguments = "arguments"
	metaAllow     = "allow" // of the restart: whether it may
	metaFor       = "for"   // of the restart: hosttools.ForOnce when left out
)

// interruptible runs a tool, and interrupts the call when code that it runs needs an approval. The restart decides, and
// waits on for the same command.
func (b *binding) interruptible(tc *ai.ToolContext, do func(context.Context) (any, error)) (any, error) {
	owner := b.run(tc).Scope() // nobody else may answer
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
	if hosttools.ApproverFromContext(tc) != nil || !b.box.asks || b.hosts == nil {
		return do(tc)
	}
	return b.box.await(tc, owner, interrupt.Start(tc, b.interrupted.begin, do))
}

// await waits for the end of a job, or interrupts the call for its next question.
func (t *toolbox) await(tc *ai.ToolContext, owner record.Scope, job *interrupt.Job[any]) (any, error) {
	q, out, err := job.Wait(tc)
	if q == nil {
		return out, err
	}
	t.rounds.Keep(q.ID, owner, interrupt.Round[*interrupt.Job[any]]{Job: job, Questions: []*interrupt.Question{q}})
	return nil, tc.Interrupt(&ai.InterruptOptions{Metadata: map[string]any{
		metaApproval: q.ID, metaExec: q.Caller.ExecID, metaSandbox: q.Caller.SandboxID, metaTool: q.Server + "." + q.Tool, metaArguments: string(q.Args),
	}})
}

// pending counts what keeps a binding in use after its Generate call.
type pending struct {
	mu    sync.Mutex // guards the fields below
	count int
	then  func() // run when the count falls to zero
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
	var then func()
	if p.count == 0 {
		then, p.then = p.then, nil
	}
	p.mu.Unlock()
	if then != nil {
		go then() // it waits for the call that this is part of; its own time limit ends it
	}
}

// after runs clean-up now, or when nothing is pending any more.
func (p *pending) after(cleanup func()) {
	p.mu.Lock()
	if p.count > 0 {
		p.then, cleanup = cleanup, nil
	}
	p.mu.Unlock()
	if cleanup != nil {
		cleanup()
	}
}
