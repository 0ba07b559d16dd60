package worker_test

import (
	"context"

	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record/postgres"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
	"github.com/workcell-dev/workcell/workflow/worker"
)

// A program adds runs to the queue. Workers of this or another program execute them.
func ExampleQueue_Add() {
	begin := func(ctx context.Context, q *worker.Queue, wf *workflow.Workflow, input map[string]any) (runID string, err error) {
		entry, err := wf.Begin(input)
		if err != nil {
			return "", err
		}
		return entry.RunID, q.Add(ctx, entry, "")
	}
	_ = begin
}

// A worker executes runs of the workflows it knows. The sandboxes come from a manager with the store. The store is in
// the same database as the queue. If the manager's lease is lost, the run is interrupted.
func ExampleQueue_Work() {
	work := func(ctx context.Context, q *worker.Queue, store *postgres.Store, m *session.Manager, agents workflow.AgentRunner, known map[string]*workflow.Workflow) error {
		resume := func(ctx context.Context, r runstore.Run) error {
			return q.Carry(ctx, r, m.Owner(), store.Lost(m.Owner()), func(ctx context.Context, j workflow.Journal, entries []workflow.Entry) error {
				_, err := workflow.NewEngine(m, agents, &workflow.Options{Journal: j}).Resume(ctx, known[r.Workflow], entries)
				return err
			})
		}
		return q.Work(ctx, worker.Options{MaxRuns: 8, Resume: resume})
	}
	_ = work
}
