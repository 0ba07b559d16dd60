package app

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/config"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// desk asks for approvals of host tool calls. It stores each call to allow answers of other processes. The first
// answer counts.
type desk struct {
	store runstore.Store
	owner string                           // owner in the store; calls of a dead owner are withdrawn
	wait  bool                             // wait for other processes even if no approver is present
	here  hosttools.Approver               // asks a person directly; nil for none
	who   string                           // name of the person whom here asks
	say   func(format string, args ...any) // informs the user of this process
}

// approver returns the approver for the calls of an owner's runs. here may be nil.
func (a *App) approver(
	j runstore.Store, owner string, here hosttools.Approver, who string, say func(string, ...any),
) hosttools.Approver {
	conf, err := a.Config()
	return &desk{j, owner, err == nil && conf.Approvals == config.ApprovalsWait, here, who, say}
}

// lookEvery is the polling interval for answers of other processes.
const lookEvery = 250 * time.Millisecond

// Approve implements [hosttools.Approver].
func (d *desk) Approve(ctx context.Context, r hosttools.ApprovalRequest) (hosttools.Decision, error) {
	if refused, ok := r.TooLong(); ok {
		return refused, nil
	}
	if d.here == nil && !d.wait {
		if _, present, err := openApprovals(ctx, d.store); !present {
			return hosttools.Decision{}, cmp.Or(err, hosttools.ErrNoApprover)
		}
	}
	c := r.Caller
	run, _ := d.store.Run(ctx, c.Run) // sessions of MCP clients have none
	until, _ := ctx.Deadline()
	q := runstore.Approval{
		ID: r.ID, Run: c.Run, Workflow: run.Workflow, Step: workflow.StepFromContext(ctx), Agent: c.Agent,
		Sandbox: c.SandboxID, Exec: c.ExecID, Server: r.Server, Tool: r.Tool, Args: r.Args, Digest: r.ArgsSHA256,
		Why: r.Why, Asked: time.Now().UTC(), Until: until.UTC(), Owner: d.owner,
	}
	if err := d.store.Ask(ctx, q); err != nil {
		return hosttools.Decision{}, err
	}
	defer withdraw(ctx, d.store, q) // has no effect after an answer
	return d.await(ctx, r, q)
}

// await waits for the first answer.
func (d *desk) await(
	ctx context.Context, r hosttools.ApprovalRequest, q runstore.Approval,
) (hosttools.Decision, error) {
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	var said hosttools.Decision
	var failed error
	var terminal sync.WaitGroup
	here := make(chan struct{}, 1) // receives an element when said and failed are set
	if d.here == nil {
		d.say("%s.%s waits for approval; to see its arguments, run: workcell approvals ls", q.Server, q.Tool)
	} else {
		terminal.Go(func() { said, failed = d.here.Approve(asking, r); here <- struct{}{} })
	}
	changed := runstore.Changes(asking, d.store, q.ID, lookEvery)
	for {
		select {
		case <-ctx.Done():
			return hosttools.Decision{}, ctx.Err()
		case <-here:
			if q.Reply = replyOf(said, d.who); failed == nil {
				failed = d.store.Answer(ctx, q)
			}
			if !errors.Is(failed, backend.ErrExists) {
				return said, failed
			}
		case <-changed:
		}
		list, _ := d.store.Approvals(ctx, q.ID) // after an error, the next attempt may succeed
		if len(list) == 0 || list[0].Answer == "" {
			if d.here != nil || d.wait {
				continue
			}
			if _, present, err := openApprovals(ctx, d.store); !present && err == nil {
				return hosttools.Decision{}, hosttools.ErrNoApprover // the approvers have left
			}
			continue
		}
		cancel()
		terminal.Wait() // before the next line on it
		a := list[0]
		d.say("%s.%s: %s by %s", q.Server, q.Tool, a.Answer, a.By)
		return hosttools.Decision{
			Allow: a.Answer == runstore.Allowed || a.Answer == runstore.AllowedTool, Note: a.Note,
			For: map[string]string{runstore.AllowedTool: hosttools.ForTool}[a.Answer],
		}, nil
	}
}

// replyOf returns a decision as stored.
func replyOf(d hosttools.Decision, by string) runstore.Reply {
	answer := map[bool]string{true: runstore.Allowed, false: runstore.Denied}[d.Allow]
	if d.Allow && d.For == hosttools.ForTool {
		answer = runstore.AllowedTool
	}
	return runstore.Reply{Answer: answer, Note: sanitize.Line(d.Note), By: by}
}

// withdraw ends a call without a decision. If the call has an answer, withdraw has no effect.
func withdraw(ctx context.Context, j runstore.Store, q runstore.Approval) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	q.Reply = runstore.Reply{Answer: runstore.Withdrawn, By: "its process"}
	_ = j.Answer(ctx, q) // after an error, another process withdraws it when this process has ended
}

// openApprovals returns the open calls, oldest first, and whether an approver is present. It
// withdraws the calls and approvers of dead processes.
func openApprovals(ctx context.Context, j runstore.Store) (open []runstore.Approval, present bool, err error) {
	list, err := j.Approvals(ctx, "")
	open = []runstore.Approval{}
	for _, q := range list {
		lives, failed := j.Lives(ctx, q.Owner)
		switch {
		case failed != nil:
			err = errors.Join(err, failed)
		case !lives:
			withdraw(ctx, j, q)
		case q.Tool == "":
			present = true
		case time.Now().Before(q.Until):
			open = append(open, q)
		}
	}
	return open, present, err
}

// Approvals returns the calls waiting for approval, oldest first.
func (a *App) Approvals(ctx context.Context, j runstore.Store) ([]runstore.Approval, error) {
	list, _, err := openApprovals(ctx, j)
	return list, err
}

// Answer answers a waiting call by id or by a unique prefix of the id. by is the name of the person
// who answers.
func (a *App) Answer(
	ctx context.Context, j runstore.Store, id string, d hosttools.Decision, by string,
) (runstore.Approval, error) {
	list, err := a.Approvals(ctx, j)
	list = slices.DeleteFunc(list, func(q runstore.Approval) bool { return q.ID != id && !abbreviates(id, q.ID) })
	q := runstore.Approval{ID: id}
	switch {
	case err == nil && len(list) == 1:
		q = list[0]
		q.Reply = replyOf(d, by)
		err = j.Answer(ctx, q)
		q.Args = nil
	case err == nil:
		err = runstore.NotAnswered(ctx, j, q, false)
	}
	if errors.Is(err, backend.ErrNotFound) {
		err = Fail(ExitNotFound, err, "run `workcell approvals ls` to list calls that wait for approval")
	}
	return q, err
}

// Attend registers this process as a present approver, to keep calls waiting for an answer instead of refusing them. It
// ends with leave, with the process, or if the owner in the records is lost.
func (a *App) Attend(
	ctx context.Context, j runstore.Store, records state.Records,
) (owner string, leave func() error, err error) {
	owner, end, err := records.Join(ctx)
	if err != nil {
		return "", nil, err
	}
	seat := runstore.Approval{ID: owner, Owner: owner, Asked: time.Now().UTC()}
	if err := j.Ask(ctx, seat); err != nil {
		return "", nil, errors.Join(err, end())
	}
	return owner, func() error { withdraw(ctx, j, seat); return end() }, nil
}
