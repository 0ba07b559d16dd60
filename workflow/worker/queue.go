// Package worker carries out runs of workflows in other processes than those that begin them, on any machine that
// reaches the same PostgreSQL database, and goes on with those whose process died.
//
// A [Queue] holds runs that wait for a worker, and their files: [Queue.Add] adds a run, [Queue.Work] executes runs. A
// row of the queue only names the worker that should try a run next. The journal decides which process has a run, as
// for all runs: a run has one owner, and the owner has a lease. A worker that takes a row checks the run first: it may
// have ended, or have a living owner.
package worker

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/postgres"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/pgjournal"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// component describes the tables of this package. Files are added before their run, so they do not refer to it.
// Version 1 used the River library to choose the worker. Its jobs were copies of rows of queued.
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
`, `
ALTER TABLE workcell.queued ADD COLUMN not_before timestamptz NOT NULL DEFAULT now();
ALTER TABLE workcell.queued ADD COLUMN worker text NOT NULL DEFAULT '';
UPDATE workcell.queued SET not_before = r.started FROM workcell.run r WHERE r.id = run AND r.finished IS NULL;
CREATE INDEX queued_not_before ON workcell.queued (not_before);
DROP TABLE IF EXISTS workcell.river_job, workcell.river_leader, workcell.river_queue, workcell.river_migration,
	workcell.river_notification, workcell.river_client_queue, workcell.river_client;
DROP FUNCTION IF EXISTS workcell.river_job_state_in_bitmask;
DROP TYPE IF EXISTS workcell.river_job_state;
`}}
}

// Queue is the runs of a database that workers carry out, with the files that they need and make, and their logs. It is
// safe for concurrent use, also by several processes.
type Queue struct {
	journal *pgjournal.Journal
	db      *postgres.DB
}

// queueChannel is notified when runs become due.
const queueChannel = "workcell_queue"

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
	return &Queue{journal: j, db: db}, nil
}

// Close lets go of the database.
func (q *Queue) Close() {
	q.db.Close()
	q.journal.Close() //nolint:errcheck // every entry is on the server's disk when Append returns
}

// Journal returns the journals of the runs.
func (q *Queue) Journal() *pgjournal.Journal { return q.journal }

// Add puts a run into the queue: e is [workflow.Workflow.Begin]'s, note is for whoever takes the run. When it returns
// nil the run is in the journal, and a worker will try it.
func (q *Queue) Add(ctx context.Context, e workflow.Entry, note string) error {
	return q.journal.Begin(ctx, e, note, func(ctx context.Context, tx pgx.Tx) error {
		return enqueue(ctx, tx, e.RunID)
	})
}

// Hand puts a run into the queue that was interrupted elsewhere, with a note in place of its own. The error is
// backend.ErrExists when it has another owner by now, or has finished.
func (q *Queue) Hand(ctx context.Context, r runstore.Run, note string) error {
	return q.db.Tx(ctx, func(ctx context.Context, tx pgx.Tx, _ bool) error {
		tag, err := tx.Exec(ctx, `UPDATE workcell.run SET note = $3, cancel = false WHERE id = $1 AND owner = $2 AND finished IS NULL`, r.ID, r.Owner, note)
		if err == nil && tag.RowsAffected() == 0 {
			err = fmt.Errorf("run %s has another owner or has finished: %w", r.ID, backend.ErrExists)
		}
		if err != nil {
			return err
		}
		return enqueue(ctx, tx, r.ID)
	})
}

// enqueue makes a run due, and tells the workers.
func enqueue(ctx context.Context, tx pgx.Tx, runID string) error {
	if _, err := tx.Exec(ctx, `INSERT INTO workcell.queued (run) VALUES ($1)
ON CONFLICT (run) DO UPDATE SET not_before = now()`, runID); err != nil {
		return err
	}
	return postgres.Notify(ctx, tx, queueChannel, "")
}

// Has reports whether a run is in the queue, so that a worker resumes it after an interruption.
func (q *Queue) Has(ctx context.Context, runID string) (has bool, err error) {
	err = q.db.Do(ctx, func(ctx context.Context, c postgres.Queryer, _ bool) error {
		return c.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workcell.queued WHERE run = $1)`, runID).Scan(&has)
	})
	return has, err
}

// Leave takes a run out of the queue that has not ended and that no worker is to try again; somebody resumes it or
// cancels it.
func (q *Queue) Leave(ctx context.Context, runID string) error {
	return q.exec(ctx, `DELETE FROM workcell.queued WHERE run = $1`, runID)
}

// Hurry makes a run due that waits for its next attempt.
func (q *Queue) Hurry(ctx context.Context, runID string) error {
	return q.exec(ctx, `WITH due AS (
	UPDATE workcell.queued SET not_before = now() WHERE run = $1 AND not_before > now() RETURNING run)
SELECT pg_notify('`+queueChannel+`', '') FROM due`, runID)
}

// exec changes rows.
func (q *Queue) exec(ctx context.Context, query string, args ...any) error {
	_, err := q.db.Exec(ctx, query, args...)
	return err
}
