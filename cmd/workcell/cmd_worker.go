//go:build !no_postgres

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/otelsetup"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
	"github.com/workcell-dev/workcell/workflow/worker"
)

// maxWorkerRuns bounds --max-runs.
const maxWorkerRuns = 1000

func newWorkerCmd(a *command) *cobra.Command {
	o := worker.Options{MaxRuns: 4}
	cmd := a.verb(engineFlags|imageFlags|auditFlags, &cobra.Command{
		Use:   "worker",
		Short: "Run queued workflows",
		Long: `Run workflows from the queue in the PostgreSQL database (--state), and resume the runs of dead workers.
To add a workflow to the queue, use ` + "`workcell run --detach`" + `. You can start any number of workers, on one
or more hosts. Each run is executed by one worker at a time. It uses the flags that it was started with, the model keys in the
environment of the worker, and the configuration of the worker's host.

On the first Ctrl-C or TERM, the worker takes no more runs and waits up to --grace for its current runs to finish.
Unfinished runs are interrupted, and another worker resumes them, in the same sandboxes if it can connect to their
engine. On a second signal, the worker exits immediately.`,
		Example: "  export WORKCELL_STATE=postgres://workcell@db.example.com/workcell\n" +
			"  workcell worker --max-runs 8\n" +
			"  workcell worker --backend docker --grace 5m",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.MaxRuns < 1 || o.MaxRuns > maxWorkerRuns {
				return usageError(fmt.Errorf("invalid value %d for --max-runs", o.MaxRuns), fmt.Sprintf("must be from 1 to %d", maxWorkerRuns))
			}
			if o.Grace < 0 {
				return usageError(fmt.Errorf("invalid value %s for --grace", o.Grace), "for example --grace 5m")
			}
			return a.work(cmd.Context(), o)
		},
	})
	f := cmd.Flags()
	f.IntVar(&o.MaxRuns, "max-runs", o.MaxRuns, "maximum number of concurrent runs")
	f.DurationVar(&o.Grace, "grace", 0, "how long to wait for running workflows on shutdown")
	f.BoolVar(&a.Options.TraceContent, "trace-content", false, "include prompts, answers, tool calls, and error texts in traces; they may contain secrets")
	a.hostToolsFlag(f)
	return cmd
}

// runWorker is a worker: what its runs share.
type runWorker struct {
	*app
	q   *worker.Queue
	tel *otelsetup.Tracing

	mu     sync.Mutex // guards what follows
	pruned time.Time
	said   map[string]string // why runs could not be carried out, as their logs say it already
}

func (a *app) work(ctx context.Context, o worker.Options) (err error) {
	q, err := a.openQueue(ctx, "a worker")
	if err != nil {
		return err
	}
	defer q.Close()
	catchBrokenPipes()
	ctx, endAudit, err := a.startAudit(ctx)
	if err != nil {
		return err
	}
	defer func() { err = endAudit(err) }()
	ctx, tel, err := a.startTracing(ctx, false)
	if err != nil {
		return err
	}
	defer tel.Close(ctx)
	w := &runWorker{app: a, q: q, tel: tel, said: map[string]string{}}
	o.Logger, o.Resume = a.logger(), w.resume
	w.prune(ctx)
	a.notice("worker started, runs up to %d workflows at a time", o.MaxRuns)
	return q.Work(ctx, o)
}

// pruneEvery is how often a worker forgets old runs.
const pruneEvery = time.Hour

// prune forgets what is old, once in a while: nobody else may run another command.
func (w *runWorker) prune(ctx context.Context) {
	w.mu.Lock()
	due := time.Since(w.pruned) > pruneEvery
	if due {
		w.pruned = time.Now()
	}
	w.mu.Unlock()
	if !due {
		return
	}
	w.pruneRuns(ctx, w.q.Journal())
	if err := w.q.Prune(ctx); err != nil {
		w.logger().Warn("cannot remove files of old runs from the database", "error", err)
	}
}

// forRun returns the command as a run has it: with the flags that travel with the run, and those that are the worker's to say. What
// it writes goes to the log.
func (a *app) forRun(n runNote, log io.Writer) *app {
	o := a.opts
	o.Stderr, o.NoReaper, o.MaxSandboxes = log, true, 0
	o.Model, o.Prices, o.Keep, o.User, o.Defaults, o.Audit = n.Model, n.Prices, n.Keep, n.User, nil, ""
	return newApp(o)
}

// resume carries out a run, and tells its log why when it cannot.
func (w *runWorker) resume(ctx context.Context, r runstore.Run) error {
	w.prune(ctx)
	log := w.q.NewLog(ctx, r.ID)
	defer log.Close()
	w.notice("run %s started: workflow %s", r.ID, r.Workflow)
	err := w.carry(ctx, r, log)
	if err != nil && ctx.Err() == nil && w.isNews(r.ID, err.Error()) {
		_, todo := classify(err)
		fmt.Fprintf(log, "cannot run on %s, will retry: %v\n", hostname(), err)
		if todo != "" {
			fmt.Fprintf(log, "hint: %s\n", todo)
		}
	}
	if now, err := w.q.Journal().Run(context.WithoutCancel(ctx), r.ID); err == nil && !now.Finished.IsZero() {
		w.notice("run %s %s", r.ID, now.Outcome)
		w.mu.Lock()
		delete(w.said, r.ID)
		w.mu.Unlock()
	}
	return err
}

// isNews reports whether something was not said of a run before.
func (w *runWorker) isNews(run, text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	news := w.said[run] != text
	w.said[run] = text
	return news
}

func (w *runWorker) carry(ctx context.Context, r runstore.Run, log *worker.Log) error {
	n, err := readNote(r)
	if err != nil {
		return err
	}
	if err := w.checkNote(r, n); err != nil {
		return err
	}
	wf, agents, clear, err := w.forRun(n, log).fetchRun(ctx, w.q, r, &n) // which changes n
	if err != nil {
		return err
	}
	defer clear()
	return w.forRun(n, log).hosting(ctx, w.tel, managerUse{}, agents, true, func(ctx context.Context, h *host) error {
		if err := n.checkEngine(ctx, h.m, r.ID); err != nil {
			return err
		}
		lost := checkSandboxes(ctx, h.m, r.ID)
		if lost != nil && !errors.Is(lost, errFilesGone) {
			return lost
		}
		carry := func(ctx context.Context, j workflow.Journal, entries []workflow.Entry) error {
			if lost != nil {
				return h.giveUp(ctx, w.q, r.ID, lost)
			}
			return h.resumeDetached(ctx, w.q, j, wf, entries)
		}
		return w.q.Carry(ctx, r, h.m.Owner(), state.Lost(h.m.records, h.m.Owner()), carry)
	})
}

// resumeDetached resumes a run that this process has taken. When that was interrupted its sandboxes stay.
func (h *host) resumeDetached(ctx context.Context, q *worker.Queue, j workflow.Journal, wf *workflow.Workflow, entries []workflow.Entry) error {
	kept, err := h.runFiles()
	if err != nil {
		return err
	}
	h.resume(workflow.History(entries))
	h.onTool = h.p.Tool
	res, err := workflow.NewEngine(h.m.Manager, h, &workflow.Options{
		Retention: h.retention(), OnPull: h.p.Pull, Logger: h.logger(), Journal: j, Results: string(kept), OnKept: h.keepIn(q), OnEvent: h.p.Event,
	}).Resume(ctx, wf, entries)
	switch {
	case res == nil:
		return err
	case res.Unfinished == nil:
		h.showKept(ctx, res.RunID)
		return nil
	case errors.Is(res.Unfinished, workflow.ErrInterrupted):
		h.p.Line("interrupted on %s; another worker can resume the run", hostname())
		return h.m.Detach(context.WithoutCancel(ctx))
	}
	h.p.Line("%v; removed from the queue; run `workcell runs resume %s` or `workcell runs cancel %[2]s`", res.Unfinished, res.RunID)
	return errors.Join(q.Leave(context.WithoutCancel(ctx), res.RunID), h.m.Detach(context.WithoutCancel(ctx)))
}

// giveUp ends a run whose files are gone.
func (h *host) giveUp(ctx context.Context, q *worker.Queue, runID string, why error) error {
	ctx = context.WithoutCancel(ctx)
	if _, err := h.m.RemoveScope(ctx, session.Scope{Namespace: session.NamespaceWorkflow, ID: runID}); err != nil {
		return err
	}
	h.p.Line("%v", why)
	e := &workflow.Error{Code: workflow.CodeLost, Message: why.Error()}
	return q.Journal().Finish(ctx, runID, workflow.Failed, e)
}
