package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/postgres"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

const (
	rescueEvery = 5 * time.Second  // how often a worker looks for jobs of dead ones
	againAfter  = 10 * time.Second // how long a run is left that cannot be carried out now
	stopTimeout = 2 * time.Minute  // for what ends with a worker
)

// Options configure a worker.
type Options struct {
	// Resume carries out a run that nobody has, until it has ended: it takes it ([Queue.Carry]) and resumes it. A run that has not
	// ended when Resume returns, whatever the error says, is tried again, here or elsewhere. When ctx ends with
	// workflow.ErrInterrupted as its cause, Resume must return soon. It is called concurrently, at most MaxRuns times at once.
	Resume func(ctx context.Context, r runstore.Run) error
	// MaxRuns is how many runs the worker has at most at once. Zero is 4.
	MaxRuns int
	// Grace is how long the runs of a worker that is to end may go on before they are interrupted.
	Grace time.Duration
	// Logger takes what operators should know. Nil discards.
	Logger *slog.Logger
}

// Work carries out runs of the queue until ctx ends. It then takes no more, gives those that it has Options.Grace to end,
// interrupts the others, which other workers go on with, and returns when it has none.
func (q *Queue) Work(ctx context.Context, o Options) error {
	if o.MaxRuns == 0 {
		o.MaxRuns = 4
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for worked := false; ; {
		err := q.workAs(ctx, o)
		worked = worked || errors.Is(err, postgres.ErrLeaseLost)
		again := worked && (errors.Is(err, postgres.ErrLeaseLost) || errors.Is(err, postgres.ErrUnreachable))
		if !again || ctx.Err() != nil {
			return err
		}
		o.Logger.Warn("this worker lost its connection or was considered dead, restarting", "error", err)
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(againAfter / 10):
		}
	}
}

// workAs works as one owner of the database, whose name River has for this worker: when others find it dead, they take its jobs.
func (q *Queue) workAs(ctx context.Context, o Options) error {
	self, err := q.db.Join(ctx)
	if err != nil {
		return err
	}
	runs, interrupt := context.WithCancelCause(context.WithoutCancel(ctx))
	defer interrupt(nil)
	workers := river.NewWorkers()
	river.AddWorker(workers, &runWorker{q: q, o: o, runs: runs})
	client, err := river.NewClient(riverpgxv5.New(q.db.Pool()), &river.Config{
		ID: self.ID, Schema: schema, Logger: o.Logger, Workers: workers, JobTimeout: -1,
		Queues:                      map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: o.MaxRuns}},
		CompletedJobRetentionPeriod: time.Hour,
	})
	if err == nil {
		err = client.Start(context.WithoutCancel(ctx))
	}
	if err != nil {
		return errors.Join(q.db.Error(err), self.Leave())
	}
	err = q.attend(ctx, o, self)
	return errors.Join(err, end(client, interrupt, o.Grace), self.Leave())
}

// attend looks for what dead workers had until ctx ends, or this one is taken for dead.
func (q *Queue) attend(ctx context.Context, o Options, self *postgres.Owner) error {
	for tick := time.Tick(rescueEvery); ; {
		if err := q.rescue(ctx, self.ID); err != nil && ctx.Err() == nil {
			o.Logger.Warn("cannot find the runs of dead workers", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-self.Lost():
			return postgres.ErrLeaseLost
		case <-tick:
		}
	}
}

// end waits for the runs of a worker, and interrupts those that take longer than grace.
func end(client *river.Client[pgx.Tx], interrupt context.CancelCauseFunc, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), grace+stopTimeout)
	defer cancel()
	patience := time.AfterFunc(grace, func() { interrupt(workflow.ErrInterrupted) })
	defer patience.Stop()
	if err := client.Stop(ctx); err != nil {
		return fmt.Errorf("runs of this worker do not finish: %w", err)
	}
	return nil
}

// held is the owner that has a job which is under way.
const held = `attempted_by[array_upper(attempted_by, 1)]`

// rescue lets the jobs be tried again that dead workers had, and those that wait for longer than any does, as they would for a
// worker whose clock is ahead; and gives a job to runs of the queue that have none.
func (q *Queue) rescue(ctx context.Context, self string) error {
	holders, err := q.holders(ctx)
	if err != nil {
		return err
	}
	for _, holder := range holders {
		if holder == self {
			continue
		}
		lives, err := q.db.Lives(ctx, holder)
		if err == nil && !lives {
			err = q.exec(ctx, `UPDATE workcell.river_job SET state = 'available', scheduled_at = now()
WHERE state = 'running' AND kind = '`+jobKind+`' AND `+held+` = $1`, holder)
		}
		if err != nil {
			return err
		}
	}
	if err := q.exec(ctx, `UPDATE workcell.river_job SET state = 'available', scheduled_at = now()
WHERE state IN ('scheduled', 'retryable') AND kind = '`+jobKind+`' AND scheduled_at > now() + interval '1 minute'`); err != nil {
		return err
	}
	return q.requeue(ctx)
}

// holders returns who has the jobs that are under way.
func (q *Queue) holders(ctx context.Context) (holders []string, err error) {
	err = q.db.Do(ctx, func(ctx context.Context, c postgres.Queryer, _ bool) error {
		rows, err := c.Query(ctx, `SELECT DISTINCT `+held+` FROM workcell.river_job WHERE state = 'running' AND kind = '`+jobKind+`'`)
		if err != nil {
			return err
		}
		holders, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return holders, err
}

// requeue gives a job to the runs of the queue that have none: the journal says which there are.
func (q *Queue) requeue(ctx context.Context) error {
	var lost []river.InsertManyParams
	if err := q.db.Do(ctx, func(ctx context.Context, c postgres.Queryer, _ bool) error {
		lost = nil
		rows, err := c.Query(ctx, `SELECT q.run FROM workcell.queued q JOIN workcell.run r ON r.id = q.run WHERE r.finished IS NULL
AND NOT EXISTS (SELECT FROM workcell.river_job j WHERE j.kind = '`+jobKind+`' AND j.args @> jsonb_build_object('run', q.run)
	AND j.state IN ('available', 'pending', 'running', 'retryable', 'scheduled')) LIMIT 1000`)
		if err != nil {
			return err
		}
		var id string
		_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
			lost = append(lost, river.InsertManyParams{Args: runArgs{id}})
			return nil
		})
		return err
	}); err != nil || lost == nil {
		return err
	}
	_, err := q.jobs.InsertMany(ctx, lost)
	return q.db.Error(err)
}

// runWorker does River's jobs.
type runWorker struct {
	river.WorkerDefaults[runArgs]
	q    *Queue
	o    Options
	runs context.Context // ends when runs are to be interrupted; not River's, which would cancel them
}

// NextRetry is for jobs that panicked. All others come back by being snoozed, which never uses them up.
func (w *runWorker) NextRetry(*river.Job[runArgs]) time.Time { return time.Now().Add(againAfter) }

// Work carries out the run of a job, if it is nobody's. A job is done when its run has ended.
func (w *runWorker) Work(ctx context.Context, job *river.Job[runArgs]) error {
	ended, err := w.try(ctx, job.Args.Run)
	if ended {
		err = w.q.ended(context.WithoutCancel(ctx), job.Args.Run)
		ended = err == nil
	}
	switch {
	case ended:
		return nil
	case w.runs.Err() != nil:
		return river.JobSnooze(0)
	case err != nil:
		w.o.Logger.Warn("retrying a run later", "run", job.Args.Run, "error", err)
	}
	return river.JobSnooze(againAfter)
}

// ended tells who follows a run that it has ended, whoever ended it, and deletes what it needed. One that has left the queue keeps it.
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
	return errors.Join(err, q.Drop(ctx, runID, Needed))
}

func (w *runWorker) try(ctx context.Context, id string) (ended bool, err error) {
	r, ended, err := w.look(ctx, id)
	if ended || err != nil || w.runs.Err() != nil {
		return ended, err
	}
	if lives, err := w.q.journal.Lives(ctx, r.Owner); err != nil || lives {
		return false, err
	}
	err = w.o.Resume(w.runs, r)
	_, ended, late := w.look(context.WithoutCancel(ctx), id)
	return ended, errors.Join(err, late)
}

// look returns a run, and whether there is nothing more to do about it: it has ended, or has left the queue.
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

// Carry takes a run for an owner and carries it out by do, which gets the run's journal and its entries so far, for
// [workflow.Engine.Resume]. The context of do ends when somebody asks for the end of the run, also before anybody had it, and,
// with workflow.ErrInterrupted, when that of Carry does or lost is closed: the owner was taken for dead.
//
// A run that has not ended when do returns is nobody's again; an owner that has sandboxes of it must leave them (Manager.Detach) before
// another one can go on with it. The error is backend.ErrExists when somebody else was faster: do is not called then.
func (q *Queue) Carry(ctx context.Context, r runstore.Run, owner string, lost <-chan struct{},
	do func(ctx context.Context, j workflow.Journal, entries []workflow.Entry) error) error {
	if err := q.journal.Pass(ctx, r.ID, r.Owner, owner); err != nil {
		return err
	}
	entries, err := q.journal.Entries(ctx, r.ID) // an earlier owner writes nothing more
	if err != nil {
		return errors.Join(err, q.release(ctx, r.ID, owner, lost))
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if r.Cancel {
		cancel(errCancelled)
	}
	go q.awaitCancel(ctx, r.ID, cancel) // ends with ctx
	go func() {
		select {
		case <-lost:
			cancel(fmt.Errorf("%w: %w", workflow.ErrInterrupted, postgres.ErrLeaseLost))
		case <-ctx.Done():
		}
	}()
	err = do(ctx, q.journal.For(owner, r.Note), entries)
	return errors.Join(err, q.release(ctx, r.ID, owner, lost))
}

// release gives up a run that has not ended, because its owner may live on. A lost owner could not leave its sandboxes,
// and its lease begins again when the server starts. To free them, release ends that owner first. It waits for the
// server.
func (q *Queue) release(ctx context.Context, runID, owner string, lost <-chan struct{}) (err error) {
	ctx = context.WithoutCancel(ctx)
	for again := true; again; again = errors.Is(err, postgres.ErrUnreachable) {
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
	if errors.Is(err, backend.ErrNotFound) || errors.Is(err, backend.ErrExists) { // it has ended, or somebody took it
		return nil
	}
	return err
}

var errCancelled = errors.New("the run was cancelled on request")

// lookEvery is how often a run is looked at beside what is told of it.
const lookEvery = 10 * time.Second

// awaitCancel cancels a run when somebody asks for it.
func (q *Queue) awaitCancel(ctx context.Context, runID string, cancel context.CancelCauseFunc) {
	look := func() {
		if r, err := q.journal.Run(ctx, runID); err == nil && r.Cancel {
			cancel(errCancelled)
		}
	}
	for ctx.Err() == nil {
		if q.journal.Watch(ctx, runID, look) != nil { // by looking until it hears again
			look()
		}
		select {
		case <-ctx.Done():
		case <-time.After(lookEvery / 10):
		}
	}
}
