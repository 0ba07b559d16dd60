// Package pgjournal keeps the journals of workflow runs in a PostgreSQL database, so that a run that was interrupted
// can be looked at and resumed by a process on another machine.
package pgjournal

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/postgres"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// component is what this package has in the database. Entries are JSON as text: jsonb would not take every string.
func component() postgres.Component {
	return postgres.Component{Name: "journal", Migrations: []string{`
CREATE TABLE workcell.run (
	id       text PRIMARY KEY,
	workflow text NOT NULL,
	hash     text NOT NULL,
	started  timestamptz NOT NULL,
	finished timestamptz,
	outcome  text NOT NULL DEFAULT '',
	owner    text NOT NULL,
	note     text NOT NULL,
	cancel   boolean NOT NULL DEFAULT false,
	entries  bigint NOT NULL DEFAULT 0
);
CREATE INDEX run_started ON workcell.run (started DESC, id);
CREATE TABLE workcell.entry (
	run  text NOT NULL REFERENCES workcell.run (id) ON DELETE CASCADE,
	seq  bigint NOT NULL,
	data text NOT NULL,
	PRIMARY KEY (run, seq)
);
CREATE TABLE workcell.conversation (
	run  text NOT NULL REFERENCES workcell.run (id) ON DELETE CASCADE,
	seq  bigint NOT NULL,
	path text NOT NULL,
	data text NOT NULL,
	PRIMARY KEY (run, seq)
);
CREATE INDEX conversation_path ON workcell.conversation (run, path);
`}}
}

// Journal is a [runstore.Store] in a database. It is safe for concurrent use, also by several processes.
type Journal struct {
	db          *postgres.DB
	owner, note string // of the runs that begin
}

// Open connects to the database of a URL, as in postgres://user@host/database, which may be that of a session store.
func Open(ctx context.Context, url string) (*Journal, error) {
	db, err := postgres.Open(ctx, url, component())
	if err != nil {
		return nil, err
	}
	return &Journal{db: db}, nil
}

// Close lets go of the database.
func (j *Journal) Close() error {
	j.db.Close()
	return nil
}

// Errors of an entry that another process's stand in the way of.
var (
	errGap   = errors.New("the entry does not follow the run's last entry")
	errTaken = errors.New("another process has resumed the run")
)

// For returns the journal for runs of an owner, as Join of the database's session store makes them, with a note for the
// process that resumes them.
func (j *Journal) For(owner, note string) workflow.Journal { return &Journal{j.db, owner, note} }

// Append implements [workflow.Journal]. The entry is on the server's disk when Append returns nil. The error is
// backend.ErrExists for an entry whose number is taken or leaves a gap, and when the run is another owner's by now: a
// run has one writer.
func (j *Journal) Append(ctx context.Context, e workflow.Entry) error {
	data, part, err := runstore.Encode(e)
	if err != nil {
		return err
	}
	done, retried, err := j.appendPlain(ctx, e, data, part)
	if done || err != nil {
		return err
	}
	err = j.appendChecked(ctx, e, data, part, &retried)
	if errors.Is(err, errGap) || errors.Is(err, errTaken) || postgres.IsConflict(err) {
		if retried {
			if there, err := j.has(ctx, e, data); there || err != nil {
				return err
			}
		}
		return fmt.Errorf("entry %d of run %s: %w: %w", e.Seq, e.RunID, err, backend.ErrExists)
	}
	return err
}

// Begin adds the first entry of a run that nobody has yet, and does in the same transaction what with does, which may
// be called again: whoever finds the run there finds the other, too. Until somebody takes it, its owner is empty.
func (j *Journal) Begin(ctx context.Context, e workflow.Entry, note string, with func(ctx context.Context, tx pgx.Tx) error) error {
	data, _, err := runstore.Encode(e)
	if err != nil {
		return err
	}
	return j.db.Tx(ctx, func(ctx context.Context, tx pgx.Tx, again bool) error {
		tag, err := tx.Exec(ctx, `INSERT INTO workcell.run (id, workflow, hash, started, owner, note, entries) VALUES ($1, $2, $3, $4, '', $5, $6)
ON CONFLICT DO NOTHING`, e.RunID, e.Workflow, e.Hash, e.Time, note, e.Seq)
		switch {
		case err != nil:
			return err
		case tag.RowsAffected() == 0 && again: // all of it is done
			return nil
		case tag.RowsAffected() == 0:
			return fmt.Errorf("run %s: %w", e.RunID, backend.ErrExists)
		}
		if _, err := tx.Exec(ctx, `INSERT INTO workcell.entry VALUES ($1, $2, $3)`, e.RunID, e.Seq, data); err != nil {
			return err
		}
		return with(ctx, tx)
	})
}

// appendPlain adds an entry to a run which is as it should be, as by far most are, in one round trip to the server and
// back. It adds nothing where appendChecked would refuse the entry, or was done by an earlier attempt whose answer was
// lost: retried.
func (j *Journal) appendPlain(ctx context.Context, e workflow.Entry, data, part string) (done, retried bool, err error) {
	query, args := `
WITH living AS (SELECT FROM workcell.owner WHERE id = $4 FOR KEY SHARE),
locked AS (UPDATE workcell.run SET entries = $2 WHERE id = $1 AND entries = $2 - 1
	AND ($4 = '' OR owner = $4 AND EXISTS (SELECT FROM living)) RETURNING id)`, []any{e.RunID, e.Seq, data, j.owner}
	switch e.Kind {
	case workflow.EventStepStarted:
	case workflow.EventStepProgress:
		query, args = query+`, part AS (INSERT INTO workcell.conversation SELECT id, $2, $5, $6 FROM locked)`, append(args, e.Path, part)
	case workflow.EventStepFinished:
		query, args = query+`, part AS (DELETE FROM workcell.conversation WHERE path = $5 AND run IN (SELECT id FROM locked))`, append(args, e.Path)
	default:
		return false, false, nil
	}
	err = j.db.Do(ctx, func(ctx context.Context, q postgres.Queryer, again bool) error {
		retried = again
		tag, err := q.Exec(ctx, query+` INSERT INTO workcell.entry SELECT id, $2, $3 FROM locked`, args...)
		done = tag.RowsAffected() > 0
		return err
	})
	return done, retried, err
}

// has reports whether an entry is there just like that.
func (j *Journal) has(ctx context.Context, e workflow.Entry, data string) (there bool, err error) {
	err = j.db.Do(ctx, func(ctx context.Context, q postgres.Queryer, _ bool) error {
		return q.QueryRow(ctx, `SELECT EXISTS (SELECT FROM workcell.entry WHERE run = $1 AND seq = $2 AND data = $3)`, e.RunID, e.Seq, data).Scan(&there)
	})
	return there, err
}

// appendChecked says what is wrong with an entry that it does not add, and sets retried if an earlier attempt may have
// added it.
func (j *Journal) appendChecked(ctx context.Context, e workflow.Entry, data, part string, retried *bool) error {
	return j.db.Tx(ctx, func(ctx context.Context, tx pgx.Tx, again bool) error {
		if err := j.guard(ctx, tx); err != nil {
			return err
		}
		*retried = *retried || again
		if e.Kind == workflow.EventRunStarted && e.Seq == 1 {
			if _, err := tx.Exec(ctx, `INSERT INTO workcell.run (id, workflow, hash, started, owner, note) VALUES ($1, $2, $3, $4, $5, $6)`,
				e.RunID, e.Workflow, e.Hash, e.Time, j.owner, j.note); err != nil {
				return err
			}
		}
		switch last, owner, err := lockRun(ctx, tx, e.RunID); {
		case err != nil:
			return err
		case j.owner != "" && owner != j.owner:
			return errTaken
		case e.Seq != last+1:
			return errGap
		}
		return insert(ctx, tx, e, data, part)
	})
}

// guard makes sure that the owner was not taken for dead. Who has no owner has nothing that others wait for.
func (j *Journal) guard(ctx context.Context, tx pgx.Tx) error {
	if j.owner == "" {
		return nil
	}
	return postgres.Guard(ctx, tx, []string{j.owner})
}

// lockRun returns the number of a run's last entry, and whose the run is, which stays so until the transaction ends.
func lockRun(ctx context.Context, tx pgx.Tx, runID string) (last int64, owner string, err error) {
	err = tx.QueryRow(ctx, `SELECT entries, owner FROM workcell.run WHERE id = $1 FOR UPDATE`, runID).Scan(&last, &owner)
	if errors.Is(err, pgx.ErrNoRows) {
		err = fmt.Errorf("run %s: %w", runID, backend.ErrNotFound)
	}
	return last, owner, err
}

// insert adds an entry to a run that is locked; the last one ends it. The conversation of an agent's attempt goes when
// the attempt has finished: nobody continues it then, and it may be large. The statements go to the server together.
func insert(ctx context.Context, tx pgx.Tx, e workflow.Entry, data, part string) error {
	batch := &pgx.Batch{}
	batch.Queue(`INSERT INTO workcell.entry VALUES ($1, $2, $3)`, e.RunID, e.Seq, data)
	switch e.Kind {
	case workflow.EventStepProgress:
		batch.Queue(`INSERT INTO workcell.conversation VALUES ($1, $2, $3, $4)`, e.RunID, e.Seq, e.Path, part)
	case workflow.EventStepFinished:
		batch.Queue(`DELETE FROM workcell.conversation WHERE run = $1 AND path = $2`, e.RunID, e.Path)
	case workflow.EventRunFinished:
		batch.Queue(`DELETE FROM workcell.conversation WHERE run = $1`, e.RunID)
		batch.Queue(`UPDATE workcell.run SET finished = $2, outcome = $3 WHERE id = $1`, e.RunID, e.Time, string(e.Outcome))
		batch.Queue(`SELECT pg_notify('`+channel+`', $1)`, e.RunID)
	}
	batch.Queue(`UPDATE workcell.run SET entries = $2 WHERE id = $1`, e.RunID, e.Seq)
	return tx.SendBatch(ctx, batch).Close()
}

// Entries returns the entries of a run so far, without the conversations of attempts that have finished;
// backend.ErrNotFound for a run that is not known, runstore.ErrDamaged for one whose entries cannot be read.
func (j *Journal) Entries(ctx context.Context, runID string) (list []workflow.Entry, err error) {
	err = j.db.Do(ctx, func(ctx context.Context, q postgres.Queryer, _ bool) error {
		rows, err := q.Query(ctx, `SELECT e.data, c.data FROM workcell.entry e LEFT JOIN workcell.conversation c ON c.run = e.run AND c.seq = e.seq
WHERE e.run = $1 ORDER BY e.seq`, runID)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, scanEntry)
		return err
	})
	return runstore.Check(ctx, j, runID, list, err)
}

func scanEntry(row pgx.CollectableRow) (e workflow.Entry, err error) {
	var data string
	var part *string
	if err := row.Scan(&data, &part); err != nil {
		return e, err
	}
	return runstore.Decode(data, part)
}

// Finish ends a run that nobody resumes, whatever its entries are like: it appends one of kind EventRunFinished. A run
// that has finished stays as it is.
func (j *Journal) Finish(ctx context.Context, runID string, outcome workflow.Outcome, why *workflow.Error) error {
	return j.db.Tx(ctx, func(ctx context.Context, tx pgx.Tx, _ bool) error {
		last, _, err := lockRun(ctx, tx, runID)
		if err != nil {
			return err
		}
		var ended bool
		if err := tx.QueryRow(ctx, `SELECT finished IS NOT NULL FROM workcell.run WHERE id = $1`, runID).Scan(&ended); err != nil || ended {
			return err
		}
		e := workflow.Entry{RunID: runID, Seq: last + 1, Time: time.Now().UTC(), Kind: workflow.EventRunFinished, Outcome: outcome, Error: why}
		data, _, err := runstore.Encode(e)
		if err != nil {
			return err
		}
		return insert(ctx, tx, e, data, "")
	})
}

// Lives reports whether an owner is alive, in any process of any machine. The empty owner is not.
func (j *Journal) Lives(ctx context.Context, owner string) (bool, error) {
	return j.db.Lives(ctx, owner)
}

// Take moves a run that has not finished from one owner to another and drops a request to cancel it.
// backend.ErrExists: it has another owner; backend.ErrNotFound: there is no such run, or it has finished.
func (j *Journal) Take(ctx context.Context, runID, from, to string) error {
	return j.take(ctx, runID, from, to, false)
}

// Pass is Take that keeps a request to cancel the run: it is for whoever has the run next.
func (j *Journal) Pass(ctx context.Context, runID, from, to string) error {
	return j.take(ctx, runID, from, to, true)
}

func (j *Journal) take(ctx context.Context, runID, from, to string, asked bool) error {
	var n int64
	retried := false
	err := j.db.Do(ctx, func(ctx context.Context, q postgres.Queryer, again bool) error {
		retried = again
		tag, err := q.Exec(ctx, `WITH taken AS (
	UPDATE workcell.run SET owner = $3, cancel = cancel AND $4 WHERE id = $1 AND owner = $2 AND finished IS NULL RETURNING id)
SELECT pg_notify('`+channel+`', id) FROM taken`, runID, from, to, asked)
		n = tag.RowsAffected()
		return err
	})
	if err != nil || n > 0 {
		return err
	}
	r, err := j.Run(ctx, runID)
	if err != nil || retried && r.Owner == to && r.Finished.IsZero() {
		return err
	}
	return runstore.NotTaken(r)
}

// AskCancel asks the owner of a run to cancel it, who sees it in the run.
func (j *Journal) AskCancel(ctx context.Context, runID string) error {
	_, err := j.db.Exec(ctx, `WITH asked AS (UPDATE workcell.run SET cancel = true WHERE id = $1 RETURNING id)
SELECT pg_notify('`+channel+`', id) FROM asked`, runID)
	return err
}

// channel is where it is told, by its id, that a run was asked to end, was taken, or has ended.
const channel = "workcell_run"

// Watch implements [runstore.Watcher].
func (j *Journal) Watch(ctx context.Context, runID string, changed func()) error {
	return j.db.Listen(ctx, channel, func(id string) {
		if id == "" || id == runID {
			changed()
		}
	})
}

// Runs returns the latest runs, at most limit, the newest first.
func (j *Journal) Runs(ctx context.Context, limit int) ([]runstore.Run, error) {
	return j.runs(ctx, `ORDER BY started DESC, id LIMIT $1`, limit)
}

// Run returns a run; backend.ErrNotFound for one that is not known.
func (j *Journal) Run(ctx context.Context, id string) (runstore.Run, error) {
	list, err := j.runs(ctx, `WHERE id = $1`, id)
	return runstore.One(id, list, err)
}

func (j *Journal) runs(ctx context.Context, which string, arg any) (list []runstore.Run, err error) {
	err = j.db.Do(ctx, func(ctx context.Context, q postgres.Queryer, _ bool) error {
		rows, err := q.Query(ctx, `SELECT id, workflow, hash, started, finished, outcome, owner, note, cancel FROM workcell.run `+which, arg)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r runstore.Run, err error) {
			var finished *time.Time
			err = row.Scan(&r.ID, &r.Workflow, &r.Hash, &r.Started, &finished, &r.Outcome, &r.Owner, &r.Note, &r.Cancel)
			r.Started = r.Started.UTC()
			if finished != nil {
				r.Finished = finished.UTC()
			}
			return r, err
		})
		return err
	})
	return list, err
}

// Prune deletes the finished runs that ended before a time, with their entries, and returns how many there were.
func (j *Journal) Prune(ctx context.Context, before time.Time) (n int64, err error) {
	return j.db.Exec(ctx, `DELETE FROM workcell.run WHERE finished < $1`, before)
}

// Delete deletes a run that has finished, with its entries; one that has not stays.
func (j *Journal) Delete(ctx context.Context, runID string) error {
	_, err := j.db.Exec(ctx, `DELETE FROM workcell.run WHERE id = $1 AND finished IS NOT NULL`, runID)
	return err
}
