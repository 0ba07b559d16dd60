package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/postgres"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

const (
	pollEvery  = 5 * time.Second  // polling interval of the queue without notifications
	againAfter = 10 * time.Second // pause between two attempts to execute a run
	askAgain   = time.Second      // pause between two attempts to give up a run

	// A worker exits within half a minute after Grace, even without the database: after stopTimeout and Owner.Leave.
	stopTimeout    = 15 * time.Second // for its runs
	releaseTimeout = 10 * time.Second // for Carry to give up a run
)

// Options configure a worker.
type Options struct {
	// Resume is required. It executes an ownerless run until the run has ended: it takes the run ([Queue.Carry]) and
	// resumes it. If the run has not ended when Resume returns, it is tried again, by any worker and regardless of
	// Resume's error. If ctx ends with the cause workflow.ErrInterrupted, Resume must return soon. It is called
	// concurrently, at most MaxRuns times.
	Resume func(ctx context.Context, r runstore.Run) error
	// MaxRuns is the maximum number of concurrent runs. If zero, it is 4.
	MaxRuns int
	// Grace is how long running workflows may continue on shutdown before they are interrupted. If zero, Work
	// interrupts them immediately.
	Grace time.Duration
	// Logger receives events for operators. If nil, events are discarded.
	Logger *slog.Logger
}

// Work executes runs of the queue until ctx ends. Then it takes no more runs, waits for its runs up to Options.Grace,
// and interrupts the remaining ones, which other workers resume. It returns when it has no runs. If the runs do not
// finish within 15 s after Options.Grace, for example without the database, Work returns an error. Other workers can
// then take its runs after the leases have expired.
func (q *Queue) Work(ctx context.Context, o Options) error {
	o.MaxRuns = cmp.Or(o.MaxRuns, 4)
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	for worked := false; ; {
		err := q.workAs(ctx, o)
		worked = worked || errors.Is(err, postgres.ErrLeaseLost)
		again := worked && (errors.Is(err, postgres.ErrLeaseLost) || errors.Is(err, postgres.ErrUnreachable))
		if !again || ctx.Err() != nil {
			return err
		}
		o.Logger.Warn("this worker lost its connection or was considered dead, restarting", "error", err)
		if !bound.Pause(ctx, againAfter/10) {
			return nil
		}
	}
}

// workAs works as one owner in the database. Rows of the queue contain the owner. If the owner is dead, the rows are
// free.
func (q *Queue) workAs(ctx context.Context, o Options) error {
	self, err := q.db.Join(ctx)
	if err != nil {
		return err
	}
	runs, interrupt := context.WithCancelCause(context.WithoutCancel(ctx))
	defer interrupt(nil)
	w := &runWorker{q: q, o: o, self: self.ID, runs: runs}
	err = w.attend(ctx, self.Lost())
	return errors.Join(err, w.end(ctx, interrupt), self.Leave())
}

// runWorker is a worker with one owner id.
type runWorker struct {
	q    *Queue
	o    Options
	self string
	runs context.Context // ends to interrupt the runs
	all  sync.WaitGroup  // waits for the runs
}

// attend executes runs of the queue until ctx ends or the owner is lost.
func (w *runWorker) attend(ctx context.Context, lost <-chan struct{}) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	due := runstore.News(ctx, pollEvery, func(ctx context.Context, changed func()) error {
		return w.q.db.Listen(ctx, queueChannel, func(string) { changed() })
	})
	busy, done := map[string]bool{}, make(chan string, w.o.MaxRuns)
	for {
		if len(busy) < w.o.MaxRuns {
			ids, err := w.claim(ctx, busy)
			if err != nil && ctx.Err() == nil {
				w.o.Logger.Warn("cannot take runs from the queue", "error", err)
			}
			for _, id := range ids {
				busy[id] = true
				w.all.Go(func() {
					w.work(id)
					done <- id
				})
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-lost:
			return postgres.ErrLeaseLost
		case id := <-done:
			delete(busy, id)
		case <-due:
		}
	}
}

// claim takes due runs without a living worker from the queue, until this worker has MaxRuns. If a run of this worker
// is not busy, an earlier call claimed it and its answer was lost. No run waits for a minute: a later not_before means
// the server's clock was set back.
func (w *runWorker) claim(ctx context.Context, busy map[string]bool) (ids []string, err error) {
	err = w.q.db.Tx(ctx, func(ctx context.Context, tx pgx.Tx, _ bool) error {
		if _, err := tx.Exec(ctx, `DELETE FROM workcell.owner WHERE `+postgres.Late+` AND id <> $1
AND id IN (SELECT worker FROM workcell.queued)`, w.self); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, `WITH due AS MATERIALIZED (
	SELECT run FROM workcell.queued q WHERE (not_before <= now() OR not_before > now() + interval '1 minute')
	AND run <> ALL($2) AND (worker = $1 OR NOT EXISTS (SELECT FROM workcell.owner WHERE id = q.worker))
	ORDER BY not_before LIMIT $3 FOR UPDATE SKIP LOCKED)
UPDATE workcell.queued q SET worker = $1 FROM due WHERE q.run = due.run RETURNING q.run`,
			w.self, slices.AppendSeq([]string{}, maps.Keys(busy)), w.o.MaxRuns-len(busy))
		if err != nil {
			return err
		}
		ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return ids, err
}

// giveBack allows any worker to try a run again after a delay.
func (w *runWorker) giveBack(ctx context.Context, id string, after time.Duration) error {
	return w.q.exec(ctx, `WITH free AS (
	UPDATE workcell.queued SET worker = '', not_before = now() + $3::interval WHERE run = $1 AND worker = $2
	RETURNING not_before)
SELECT pg_notify('`+queueChannel+`', '') FROM free WHERE not_before <= now()`, id, w.self, after)
}

// end waits for the runs of a worker and interrupts runs after Grace. When ctx ends, it soon stops waiting: if the
// database is down, the runs are free after their leases have expired.
func (w *runWorker) end(ctx context.Context, interrupt context.CancelCauseFunc) error {
	patience := time.AfterFunc(w.o.Grace, func() { interrupt(workflow.ErrInterrupted) })
	defer patience.Stop()
	timeout := time.NewTimer(w.o.Grace + 8*stopTimeout) // if it only lost the lease
	defer context.AfterFunc(ctx, func() { timeout.Reset(w.o.Grace + stopTimeout) })()
	ended := make(chan struct{})
	go func() {
		w.all.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-timeout.C:
		return errors.New("runs of this worker do not finish")
	}
}

// work tries a run. If the run has not ended afterwards, it stays in the queue.
func (w *runWorker) work(id string) {
	ctx, after := context.WithoutCancel(w.runs), againAfter
	ended, err := w.try(ctx, id)
	if ended {
		if err = w.q.ended(ctx, id); err == nil {
			return
		}
	}
	if w.runs.Err() != nil { // without the database, the row is free after this worker's lease has expired
		after = 0
	} else if err != nil {
		w.o.Logger.Warn("retrying a run later", "run", id, "error", err)
	}
	if err := w.giveBack(ctx, id, after); err != nil {
		w.o.Logger.Warn("cannot return a run to the queue", "run", id, "error", err)
	}
}

// ended records the end of a run in the log, deletes the Needed file, and removes it from the queue. If a run left the
// queue before the end, the file is kept.
func (q *Queue) ended(ctx context.Context, runID string) error {
	r, err := q.journal.Run(ctx, runID)
	if err == nil && r.Finished.IsZero() {
		return nil
	}
	if err == nil {
		log := q.NewLog(ctx, runID)
		log.End()
		log.Close()
	}
	if errors.Is(err, backend.ErrNotFound) {
		err = nil
	}
	if err := errors.Join(err, q.Drop(ctx, runID, Needed)); err != nil {
		return err
	}
	return q.Leave(ctx, runID)
}

// try executes an unfinished run without a living owner.
func (w *runWorker) try(ctx context.Context, id string) (ended bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			ended, err = false, fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	r, ended, err := w.look(ctx, id)
	if ended || err != nil || w.runs.Err() != nil {
		return ended, err
	}
	if lives, err := w.q.journal.Lives(ctx, r.Owner); err != nil || lives {
		return false, err
	}
	err = w.o.Resume(w.runs, r)
	if err != nil && w.runs.Err() != nil {
		return false, err // the next worker finds out whether it has ended
	}
	_, ended, late := w.look(ctx, id)
	return ended, errors.Join(err, late)
}

// look returns a run. ended reports whether the run has ended or has left the queue.
func (w *runWorker) look(ctx context.Context, id string) (r runstore.Run, ended bool, err error) {
	r, err = w.q.journal.Run(ctx, id)
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return r, true, nil
	case err != nil || !r.Finished.IsZero():
		return r, err == nil, err
	}
	has, err := w.q.Has(ctx, id)
	return r, err == nil && !has, err
}

// Carry takes a run for an owner and calls do to execute it. do receives the run's journal and its entries for
// [workflow.Engine.Resume]. The context of do is canceled if a process requests the end of the run, even if the request
// came before Carry. It ends with the cause workflow.ErrInterrupted when ctx ends or lost is closed.
//
// lost must be closed when other processes may treat the owner as dead. For the owner of a session manager, pass
// store.Lost(manager.Owner()) of the manager's store (package session/record/postgres). If lost is nil, Carry continues
// the run even if another process takes it.
//
// If the run has not ended when do returns, it becomes ownerless. An owner with sandboxes of the run must release them
// (Manager.Detach) before another owner can continue the run. If another process takes the run first, Carry does not
// call do and returns an error wrapping backend.ErrExists.
func (q *Queue) Carry(ctx context.Context, r runstore.Run, owner string, lost <-chan struct{},
	do func(ctx context.Context, j workflow.Journal, entries []workflow.Entry) error) error {
	if err := q.journal.Pass(ctx, r.ID, r.Owner, owner); err != nil {
		return err
	}
	entries, err := q.journal.Entries(ctx, r.ID) // an earlier owner can write no more entries
	if err != nil {
		return errors.Join(err, q.release(ctx, r.ID, owner, lost))
	}
	carried, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(workflow.ErrInterrupted) })()
	if r.Cancel {
		cancel(errCancelled)
	}
	go runstore.AwaitCancel(carried, q.journal, r.ID, func() { cancel(errCancelled) }) // returns with carried
	go func() {
		select {
		case <-lost:
			cancel(fmt.Errorf("%w: %w", workflow.ErrInterrupted, postgres.ErrLeaseLost))
		case <-carried.Done():
		}
	}()
	err = do(carried, q.journal.For(owner, r.Note), entries)
	return errors.Join(err, q.release(ctx, r.ID, owner, lost))
}

// release gives up an unfinished run, because the owner may continue to live. A lost owner could not release the
// sandboxes, and its lease is renewed when the server starts. To free the sandboxes, release ends such an owner first.
// It waits for the server, but at most releaseTimeout after the end of ctx: then the owner ends, and the run is free
// after the lease.
func (q *Queue) release(ctx context.Context, runID, owner string, lost <-chan struct{}) (err error) {
	worker := ctx
	ctx, cancel := context.WithCancel(context.WithoutCancel(worker))
	defer cancel()
	defer context.AfterFunc(worker, func() { time.AfterFunc(releaseTimeout, cancel) })()
	for again := true; again; again = errors.Is(err, postgres.ErrUnreachable) && bound.Pause(ctx, askAgain) {
		select {
		case <-lost:
			err = q.exec(ctx, `DELETE FROM workcell.owner WHERE id = $1`, owner)
		default:
			err = nil
		}
		if err == nil {
			err = q.journal.Pass(ctx, runID, owner, "left-by-"+owner)
		}
	}
	if errors.Is(err, backend.ErrNotFound) || errors.Is(err, backend.ErrExists) { // ended or taken
		return nil
	}
	return err
}

var errCancelled = errors.New("the run was canceled on request")
