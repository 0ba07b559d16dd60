// Package worker carries out runs of workflows in other processes than those that begin them, on any machine that reaches
// the same PostgreSQL database, and goes on with those whose process died.
//
// A [Queue] is the runs that nobody has yet, and what they need: [Queue.Add] puts one in, [Queue.Work] takes them out. Which
// process should try a run next is what River (https://riverqueue.com) says, whose tables lie beside those of the journals. Which
// process has a run is what the journal says, as it does for all runs: a run has one owner, and that has a lease. A job of River is
// no more than the advice to look: whoever follows it finds that the run has ended, that somebody has it, or takes it.
package worker

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/postgres"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/pgjournal"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// schema holds the tables of River, too.
const schema = "workcell"

// component is what this package has in the database beside River. Files come before their run, so that they do not refer to it.
func component() postgres.Component {
	return postgres.Component{Name: "queue", Migrations: []string{`
CREATE TABLE workcell.queued (
	run text PRIMARY KEY REFERENCES workcell.run (id) ON DELETE CASCADE
);
CREATE TABLE workcell.run_file (
	run   text NOT NULL,
	name  text NOT NULL,
	part  int NOT NULL,
	data  bytea NOT NULL,
	added timestamptz NOT NULL DEFAULT clock_timestamp(),
	PRIMARY KEY (run, name, part)
);
CREATE TABLE workcell.run_log (
	id    bigserial PRIMARY KEY,
	run   text NOT NULL REFERENCES workcell.run (id) ON DELETE CASCADE,
	text  text NOT NULL,
	ended boolean NOT NULL
);
CREATE INDEX run_log_run ON workcell.run_log (run, id);
`}}
}

// Queue is the runs of a database that workers carry out, with the files that they need and make, and their logs. It is safe for
// concurrent use, also by several processes.
type Queue struct {
	journal *pgjournal.Journal
	db      *postgres.DB
	jobs    *river.Client[pgx.Tx] // that only inserts
}

// runArgs is a job of River: a run that somebody should look at.
type runArgs struct {
	Run string `json:"run"`
}

// Kind names the jobs of this package among those of River.
func (runArgs) Kind() string { return jobKind }

// InsertOpts makes River keep one job for each run, for as long as it lives.
func (runArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true}}
}

const jobKind = "workcell_run"

// Open connects to the database of a URL, as in postgres://user@host/database, and brings its tables up to date.
func Open(ctx context.Context, url string) (*Queue, error) {
	j, err := pgjournal.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	db, err := postgres.Open(ctx, url, component())
	if err != nil {
		j.Close() //nolint:errcheck // nothing was written by it
		return nil, err
	}
	q := &Queue{journal: j, db: db}
	if err = q.migrate(ctx); err == nil {
		q.jobs, err = river.NewClient(riverpgxv5.New(db.Pool()), &river.Config{Schema: schema, Logger: slog.New(slog.DiscardHandler)})
	}
	if err != nil {
		q.Close()
		return nil, db.Error(err)
	}
	return q, nil
}

// migrate brings River's tables up to date: forwards only, one process after the other. Its steps are transactions of their own,
// because PostgreSQL wants to have seen a new value of an enumeration before it is used.
func (q *Queue) migrate(ctx context.Context) error {
	m, err := rivermigrate.New(riverpgxv5.New(q.db.Pool()), &rivermigrate.Config{Schema: schema, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	if done, err := q.upToDate(ctx, len(m.AllVersions())); done || err != nil {
		return err
	}
	leave, err := q.db.Lock(ctx, "migrate-river")
	if err != nil {
		return err
	}
	defer leave() //nolint:errcheck // the lock goes with its connection
	if done, err := q.upToDate(ctx, len(m.AllVersions())); done || err != nil {
		return err
	}
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

// upToDate reports whether all steps are done; postgres.ErrNewer when there are others.
func (q *Queue) upToDate(ctx context.Context, known int) (bool, error) {
	var there bool
	have := 0
	err := q.db.Do(ctx, func(ctx context.Context, c postgres.Queryer, _ bool) error {
		if err := c.QueryRow(ctx, `SELECT to_regclass('workcell.river_migration') IS NOT NULL`).Scan(&there); err != nil || !there {
			return err
		}
		return c.QueryRow(ctx, `SELECT coalesce(max(version), 0) FROM workcell.river_migration`).Scan(&have)
	})
	if have > known {
		return false, fmt.Errorf("%w: the job queue has version %d, this program supports %d", postgres.ErrNewer, have, known)
	}
	return have == known, err
}

// Close lets go of the database.
func (q *Queue) Close() {
	q.db.Close()
	q.journal.Close() //nolint:errcheck // every entry is on the server's disk when Append returns
}

// Journal returns the journals of the runs.
func (q *Queue) Journal() *pgjournal.Journal { return q.journal }

// Add puts a run into the queue: e is [workflow.Workflow.Begin]'s, note is for whoever takes the run. When it returns nil the run is
// in the journal, and a worker will try it.
func (q *Queue) Add(ctx context.Context, e workflow.Entry, note string) error {
	return q.journal.Begin(ctx, e, note, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO workcell.queued VALUES ($1)`, e.RunID); err != nil {
			return err
		}
		_, err := q.jobs.InsertTx(ctx, tx, runArgs{e.RunID}, nil)
		return err
	})
}

// Hand puts a run into the queue that was interrupted elsewhere, with a note in place of its own. The error is backend.ErrExists when
// it has another owner by now, or has finished.
func (q *Queue) Hand(ctx context.Context, r runstore.Run, note string) error {
	return q.db.Tx(ctx, func(ctx context.Context, tx pgx.Tx, _ bool) error {
		tag, err := tx.Exec(ctx, `UPDATE workcell.run SET note = $3, cancel = false WHERE id = $1 AND owner = $2 AND finished IS NULL`, r.ID, r.Owner, note)
		if err == nil && tag.RowsAffected() == 0 {
			err = fmt.Errorf("run %s has another owner or has finished: %w", r.ID, backend.ErrExists)
		}
		if err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO workcell.queued VALUES ($1) ON CONFLICT DO NOTHING`, r.ID); err != nil {
			return err
		}
		// The job of a run that was in the queue before has been done.
		if _, err := tx.Exec(ctx, `DELETE FROM workcell.river_job WHERE kind = '`+jobKind+`' AND state IN ('completed', 'discarded', 'cancelled')
AND args @> jsonb_build_object('run', $1::text)`, r.ID); err != nil {
			return err
		}
		_, err = q.jobs.InsertTx(ctx, tx, runArgs{r.ID}, nil)
		return err
	})
}

// Has reports whether a run came from the queue, so that a worker goes on with it when it is interrupted.
func (q *Queue) Has(ctx context.Context, runID string) (has bool, err error) {
	err = q.db.Do(ctx, func(ctx context.Context, c postgres.Queryer, _ bool) error {
		return c.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workcell.queued WHERE run = $1)`, runID).Scan(&has)
	})
	return has, err
}

// Leave takes a run out of the queue that has not ended and that no worker is to try again; somebody resumes it or cancels it.
func (q *Queue) Leave(ctx context.Context, runID string) error {
	return q.exec(ctx, `DELETE FROM workcell.queued WHERE run = $1`, runID)
}

// Hurry lets a run be tried now that would be tried again later.
func (q *Queue) Hurry(ctx context.Context, runID string) error {
	return q.exec(ctx, `UPDATE workcell.river_job SET state = 'available', scheduled_at = now()
WHERE kind = '`+jobKind+`' AND state IN ('scheduled', 'retryable') AND args @> jsonb_build_object('run', $1::text)`, runID)
}

// exec changes rows.
func (q *Queue) exec(ctx context.Context, query string, args ...any) error {
	_, err := q.db.Exec(ctx, query, args...)
	return err
}
