//go:build !no_postgres

package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/otelsetup"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/session/admin"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
	"github.com/workcell-dev/workcell/workflow/worker"
)

// runWorker is the shared state of a worker's runs.
type runWorker struct {
	*App
	q   *queue
	tel *otelsetup.Tracing

	mu     sync.Mutex // guards the fields below
	pruned time.Time
	said   map[string]string // by run: latest reason why it could not run, to avoid repeating it
}

// Work runs queued workflows until ctx ends.
func (a *App) Work(ctx context.Context, o worker.Options) error {
	open := func() (*queue, error) { return a.openQueue(ctx, "a worker") } // the database may start at the same time
	q, err := bound.Await(ctx, 2*time.Minute, a.Logger(), "the worker waits for its database", state.Passes, open)
	if err != nil {
		return err
	}
	defer q.Close()
	return a.Observe(ctx, false, func(ctx context.Context, tel *otelsetup.Tracing) error {
		w := &runWorker{App: a, q: q, tel: tel, said: map[string]string{}}
		o.Logger, o.Resume = a.Logger(), w.resume
		w.prune(ctx)
		a.Notice("worker started, runs up to %d workflows at a time", o.MaxRuns)
		return q.Work(ctx, o)
	})
}

// pruneEvery is how often a worker deletes old runs.
const pruneEvery = time.Hour

// prune deletes old runs periodically, because users may never run another command on this host.
func (w *runWorker) prune(ctx context.Context) {
	w.mu.Lock()
	due := time.Since(w.pruned) > pruneEvery
	if due {
		w.pruned = time.Now()
		clear(w.said) // it also contains runs that other workers have finished
	}
	w.mu.Unlock()
	if !due {
		return
	}
	w.pruneRuns(ctx, w.q.Journal())
	if err := w.q.Prune(ctx); err != nil {
		w.Logger().Warn("cannot remove files of old runs from the database", "error", err)
	}
}

// forRun returns the App for a run. It has the flags stored with the run and the worker's own flags. The output goes to
// the log.
func (a *App) forRun(n runNote, log io.Writer) *App {
	o := a.opts
	o.Stderr, o.NoReaper, o.MaxSandboxes = log, true, 0
	o.Model, o.Prices, o.Keep, o.User, o.Defaults, o.Audit = n.Model, n.Prices, n.Keep, n.User, nil, ""
	return New(o)
}

// resume executes a run. If this fails, it writes the reason to the run's log.
func (w *runWorker) resume(ctx context.Context, r runstore.Run) error {
	w.prune(ctx)
	log := w.q.NewLog(ctx, r.ID)
	defer log.Close()
	w.Notice("run %s started: workflow %s", r.ID, r.Workflow)
	err := w.carry(ctx, r, log)
	if err != nil && ctx.Err() == nil && w.isNews(r.ID, err.Error()) {
		_, todo := Classify(err)
		fmt.Fprintf(log, "cannot run on %s, will retry: %v\n", hostname(), err)
		if todo != "" {
			fmt.Fprintf(log, "hint: %s\n", todo)
		}
	}
	look, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second) // ctx may have ended with the worker
	defer cancel()
	if now, err := w.q.Journal().Run(look, r.ID); err == nil && !now.Finished.IsZero() {
		w.Notice("run %s %s", r.ID, now.Outcome)
	}
	return err
}

// isNews reports whether text differs from the previous text about the run.
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
	p, err := w.forRun(n, log).fetchRun(ctx, w.q, r, &n) // changes n
	if err != nil {
		return err
	}
	defer p.close()
	return w.forRun(n, log).hosting(ctx, w.tel, Use{Waits: true}, p.Files, true, func(ctx context.Context, h *host) error {
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
			return h.resumeDetached(ctx, w.q, j, p.Workflow, entries)
		}
		return w.q.Carry(ctx, r, h.m.Owner(), state.Lost(h.m.Records, h.m.Owner()), carry)
	})
}

// resumeDetached resumes a run taken by this process. If the run is interrupted, the sandboxes stay.
func (h *host) resumeDetached(
	ctx context.Context, q *queue, j workflow.Journal, wf *workflow.Workflow, entries []workflow.Entry,
) error {
	h.resume(workflow.History(entries))
	h.approve = h.approver(q.Journal(), h.m.Owner(), h.p.Approver(), "the user at the terminal", h.p.Line)
	onEvent := h.p.Event
	if len(entries) == 1 { // no process has run it yet
		onEvent = func(ev workflow.Event) {
			if ev.Kind == workflow.EventRunResumed {
				ev.Kind = workflow.EventRunStarted
			}
			h.p.Event(ev)
		}
	}
	res, err := workflow.NewEngine(h.m.Manager, h, &workflow.Options{
		Retention: h.retention(), OnPull: h.p.Pull, Logger: h.Logger(), Journal: j, Results: string(h.m.runFiles()),
		OnKept: h.keepIn(q), OnEvent: onEvent,
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
	h.p.Line("%v; removed from the queue; run `workcell runs resume %s` or `workcell runs cancel %[2]s`", res.Unfinished,
		hint.Quote(res.RunID))
	return errors.Join(q.Leave(context.WithoutCancel(ctx), res.RunID), h.m.Detach(context.WithoutCancel(ctx)))
}

// giveUp ends a run whose files are gone.
func (h *host) giveUp(ctx context.Context, q *queue, runID string, why error) error {
	ctx = context.WithoutCancel(ctx)
	if _, err := admin.RemoveScope(ctx, h.m.Manager, scopeOf(runID)); err != nil {
		return err
	}
	h.p.Line("%v", why)
	e := &workflow.Error{Code: workflow.CodeLost, Message: why.Error()}
	return q.Journal().Finish(ctx, runID, workflow.Failed, e)
}
