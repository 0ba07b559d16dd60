// Package worker executes workflow runs in worker processes on any host with access to the PostgreSQL database. Workers
// also resume runs whose process died.
//
// A [Queue] contains the runs waiting for a worker, and their files. [Queue.Add] adds a run, and [Queue.Work] executes
// runs. A row of the queue only names the next worker for a run. As for all runs, the journal decides which process has
// a run: a run has one owner, and the owner has a lease. A worker checks the run of a row first, because the run may
// have ended or may have a living owner.
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

// component defines the tables of this package. Files are added before their run, so they do not reference it. Version
// 1 used the River library to choose the worker. River's jobs were copies of rows of queued.
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

// Queue contains the runs for workers, their files, and their logs. It is safe for concurrent use, and several
// processes may use the database.
type Queue struct {
	journal *pgjournal.Journal
	db      *postgres.DB
}

// queueChannel is notified when runs become due.
const queueChannel = "workcell_queue"

// Open connects to a database URL, for example postgres://user@host/database, and updates the tables.
func Open(ctx context.Context, url string) (*Queue, error) {
	j, err := pgjournal.Open(ctx, url)
	if err != nil {
		return nil, err
	}
	db, err := postgres.Open(ctx, url, component())
	if err != nil {
		j.Close() //nolint:errcheck // it has written nothing
		return nil, err
	}
	return &Queue{journal: j, db: db}, nil
}

// Close closes the connections.
func (q *Queue) Close() {
	q.db.Close()
	q.journal.Close() //nolint:errcheck // every entry is on the server's disk when Append returns
}

// Journal returns the journals of the runs.
func (q *Queue) Journal() *pgjournal.Journal { return q.journal }

// Add adds a run to the queue. e is the entry from [workflow.Workflow.Begin], and note is for the next process of the
// run. When Add returns nil, the run is in the journal, and a worker will try to execute it.
func (q *Queue) Add(ctx context.Context, e workflow.Entry, note string) error {
	return q.journal.Begin(ctx, e, note, func(ctx context.Context, tx pgx.Tx) error {
		return enqueue(ctx, tx, e.RunID)
	})
}

// Hand adds a run that was interrupted in another process to the queue, and replaces the note. If the run now has
// another owner or has finished, the error wraps backend.ErrExists.
func (q *Queue) Hand(ctx context.Context, r runstore.Run, note string) error {
	return q.db.Tx(ctx, func(ctx context.Context, tx pgx.Tx, _ bool) error {
		tag, err := tx.Exec(ctx, `UPDATE workcell.run SET note = $3, cancel = false
WHERE id = $1 AND owner = $2 AND finished IS NULL`, r.ID, r.Owner, note)
		if err == nil && tag.RowsAffected() == 0 {
			err = fmt.Errorf("run %s has another owner or has finished: %w", r.ID, backend.ErrExists)
		}
		if err != nil {
			return err
		}
		return enqueue(ctx, tx, r.ID)
	})
}

// enqueue makes a run due and notifies the workers.
func enqueue(ctx context.Context, tx pgx.Tx, runID string) error {
	if _, err := tx.Exec(ctx, `INSERT INTO workcell.queued (run) VALUES ($1)
ON CONFLICT (run) DO UPDATE SET not_before = now()`, runID); err != nil {
		return err
	}
	return postgres.Notify(ctx, tx, queueChannel, "")
}

// Has reports whether a run is in the queue. If so, a worker resumes it after an interruption.
func (q *Queue) Has(ctx context.Context, runID string) (has bool, err error) {
	err = q.db.Do(ctx, func(ctx context.Context, c postgres.Queryer, _ bool) error {
		return c.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workcell.queued WHERE run = $1)`, runID).Scan(&has)
	})
	return has, err
}

// Leave removes an unfinished run from the queue, to prevent further attempts. The run can still be resumed or
// canceled.
func (q *Queue) Leave(ctx context.Context, runID string) error {
	return q.exec(ctx, `DELETE FROM workcell.queued WHERE run = $1`, runID)
}

// Hurry makes a waiting run due.
func (q *Queue) Hurry(ctx context.Context, runID string) error {
	return q.exec(ctx, `WITH due AS (
	UPDATE workcell.queued SET not_before = now() WHERE run = $1 AND not_before > now() RETURNING run)
SELECT pg_notify('`+queueChannel+`', '') FROM due`, runID)
}

// exec executes a statement changing rows.
func (q *Queue) exec(ctx context.Context, query string, args ...any) error {
	_, err := q.db.Exec(ctx, query, args...)
	return err
}
