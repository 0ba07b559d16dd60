// Package sqlitejournal keeps the journals of workflow runs in a SQLite file, so that a run that was interrupted can be
// looked at and resumed by another process.
package sqlitejournal

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sqlitefile"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// component is what this package has in the file. Times are microseconds since 1970; 0 is none.
func component() sqlitefile.Component {
	return sqlitefile.Component{Name: "journal", Migrations: []string{`
CREATE TABLE run (
	id       TEXT PRIMARY KEY,
	workflow TEXT NOT NULL,
	hash     TEXT NOT NULL,
	started  INTEGER NOT NULL,
	finished INTEGER NOT NULL,
	outcome  TEXT NOT NULL,
	owner    TEXT NOT NULL,
	note     TEXT NOT NULL,
	cancel   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX run_started ON run (started, id);
CREATE TABLE entry (
	run  TEXT NOT NULL REFERENCES run (id) ON DELETE CASCADE,
	seq  INTEGER NOT NULL,
	data TEXT NOT NULL,
	PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;
`, `
CREATE TABLE conversation (
	run  TEXT NOT NULL REFERENCES run (id) ON DELETE CASCADE,
	seq  INTEGER NOT NULL,
	path TEXT NOT NULL,
	data TEXT NOT NULL,
	PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX conversation_path ON conversation (run, path);
`}}
}

// Journal is a [runstore.Store] in a file. It is safe for concurrent use, also by several processes.
type Journal struct {
	f           *sqlitefile.File
	owner, note string // of the runs that begin
}

// Open opens the file at path, which is made when there is none. It may be the file of other components.
func Open(ctx context.Context, path string) (*Journal, error) {
	f, err := sqlitefile.Open(ctx, path, component())
	if err != nil {
		return nil, err
	}
	return &Journal{f: f}, nil
}

// Close closes the file.
func (j *Journal) Close() error { return j.f.Close() }

// errGap: an entry does not follow the run's last one, so another process has resumed the same run.
var errGap = errors.New("the entry does not follow the run's last entry")

// For returns the journal for runs of an owner, as Join of the file's session store makes them, with a note for the
// process that resumes them.
func (j *Journal) For(owner, note string) workflow.Journal { return &Journal{j.f, owner, note} }

// Append implements [workflow.Journal]. The entry is on the disk when Append returns nil. The error is
// backend.ErrExists for an entry whose number is taken or leaves a gap: a run has one writer.
func (j *Journal) Append(ctx context.Context, e workflow.Entry) error {
	err := j.f.Tx(ctx, func(tx *sql.Tx) error {
		if e.Kind == workflow.EventRunStarted && e.Seq == 1 {
			if _, err := tx.ExecContext(ctx, `INSERT INTO run VALUES (?, ?, ?, ?, 0, '', ?, ?, 0)`,
				e.RunID, e.Workflow, e.Hash, e.Time.UnixMicro(), j.owner, j.note); err != nil {
				return err
			}
		}
		switch seq, err := next(ctx, tx, e.RunID); {
		case err != nil:
			return err
		case e.Seq != seq:
			return errGap
		}
		return insert(ctx, tx, e)
	})
	if errors.Is(err, errGap) || sqlitefile.IsConflict(err) {
		return fmt.Errorf("entry %d of run %s: %w: %w", e.Seq, e.RunID, err, backend.ErrExists)
	}
	return err
}

// next returns the number of a run's next entry.
func next(ctx context.Context, tx *sql.Tx, runID string) (seq int64, err error) {
	err = tx.QueryRowContext(ctx, `SELECT coalesce(max(seq), 0) + 1 FROM entry WHERE run = ?`, runID).Scan(&seq)
	return seq, err
}

// insert adds an entry; the last one ends its run. The conversation of an agent's attempt lies apart, and goes when the
// attempt has finished: nobody continues it then, and it may be large.
func insert(ctx context.Context, tx *sql.Tx, e workflow.Entry) error {
	data, part, err := runstore.Encode(e)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, `INSERT INTO entry VALUES (?, ?, ?)`, e.RunID, e.Seq, data); err != nil {
		return err
	}
	switch e.Kind {
	case workflow.EventStepProgress:
		_, err = tx.ExecContext(ctx, `INSERT INTO conversation VALUES (?, ?, ?, ?)`, e.RunID, e.Seq, e.Path, part)
	case workflow.EventStepFinished:
		_, err = tx.ExecContext(ctx, `DELETE FROM conversation WHERE run = ? AND path = ?`, e.RunID, e.Path)
	case workflow.EventRunFinished:
		_, err = tx.ExecContext(ctx, `DELETE FROM conversation WHERE run = ?`, e.RunID)
	}
	if err != nil {
		return err
	}
	if e.Kind != workflow.EventRunFinished {
		return nil
	}
	_, err = tx.ExecContext(ctx, `UPDATE run SET finished = ?, outcome = ? WHERE id = ?`, e.Time.UnixMicro(), string(e.Outcome), e.RunID)
	return err
}

// Entries returns the entries of a run so far, without the conversations of attempts that have finished;
// backend.ErrNotFound for an unknown run, runstore.ErrDamaged for entries that cannot be read.
func (j *Journal) Entries(ctx context.Context, runID string) ([]workflow.Entry, error) {
	var list []workflow.Entry
	err := j.f.Each(ctx, func(row sqlitefile.Row) error {
		var data string
		var part *string
		if err := row.Scan(&data, &part); err != nil {
			return err
		}
		e, err := runstore.Decode(data, part)
		list = append(list, e)
		return err
	}, `SELECT e.data, c.data FROM entry e LEFT JOIN conversation c ON c.run = e.run AND c.seq = e.seq WHERE e.run = ? ORDER BY e.seq`, runID)
	return runstore.Check(ctx, j, runID, list, err)
}

// Finish ends a run that nobody resumes, whatever its entries are like: it appends one of kind EventRunFinished. A run
// that has finished stays as it is.
func (j *Journal) Finish(ctx context.Context, runID string, outcome workflow.Outcome, why *workflow.Error) error {
	return j.f.Tx(ctx, func(tx *sql.Tx) error {
		var ended bool
		err := tx.QueryRowContext(ctx, `SELECT finished <> 0 FROM run WHERE id = ?`, runID).Scan(&ended)
		if errors.Is(err, sql.ErrNoRows) {
			err = fmt.Errorf("run %s: %w", runID, backend.ErrNotFound)
		}
		if err != nil || ended {
			return err
		}
		seq, err := next(ctx, tx, runID)
		if err != nil {
			return err
		}
		return insert(ctx, tx, workflow.Entry{
			RunID: runID, Seq: seq, Time: time.Now().UTC(), Kind: workflow.EventRunFinished, Outcome: outcome, Error: why,
		})
	})
}

// Lives reports whether an owner is alive, in any process of this machine. The empty owner is not.
func (j *Journal) Lives(ctx context.Context, owner string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	return j.f.Lives(owner)
}

// Take moves a run that has not finished from one owner to another and drops a request to cancel it.
// backend.ErrExists: it has another owner; backend.ErrNotFound: there is no such run, or it has finished.
func (j *Journal) Take(ctx context.Context, runID, from, to string) error {
	n, err := j.f.Exec(ctx, `UPDATE run SET owner = ?, cancel = 0 WHERE id = ? AND owner = ? AND finished = 0`, to, runID, from)
	if err != nil || n > 0 {
		return err
	}
	r, err := j.Run(ctx, runID)
	if err != nil {
		return err
	}
	return runstore.NotTaken(r)
}

// AskCancel asks the owner of a run to cancel it, who sees it in the run.
func (j *Journal) AskCancel(ctx context.Context, runID string) error {
	_, err := j.f.Exec(ctx, `UPDATE run SET cancel = 1 WHERE id = ?`, runID)
	return err
}

// Runs returns the latest runs, at most limit, the newest first.
func (j *Journal) Runs(ctx context.Context, limit int) ([]runstore.Run, error) {
	return j.runs(ctx, `ORDER BY started DESC, id LIMIT ?`, limit)
}

// Run returns a run; backend.ErrNotFound for one that is not known.
func (j *Journal) Run(ctx context.Context, id string) (runstore.Run, error) {
	list, err := j.runs(ctx, `WHERE id = ?`, id)
	return runstore.One(id, list, err)
}

func (j *Journal) runs(ctx context.Context, which string, arg any) (list []runstore.Run, err error) {
	err = j.f.Each(ctx, func(row sqlitefile.Row) error {
		var r runstore.Run
		var started, finished int64
		err := row.Scan(&r.ID, &r.Workflow, &r.Hash, &started, &finished, &r.Outcome, &r.Owner, &r.Note, &r.Cancel)
		r.Started = time.UnixMicro(started).UTC()
		if finished != 0 {
			r.Finished = time.UnixMicro(finished).UTC()
		}
		list = append(list, r)
		return err
	}, `SELECT id, workflow, hash, started, finished, outcome, owner, note, cancel FROM run `+which, arg)
	return list, err
}

// Prune deletes the finished runs that ended before a time, with their entries, and returns how many there were.
func (j *Journal) Prune(ctx context.Context, before time.Time) (n int64, err error) {
	return j.f.Exec(ctx, `DELETE FROM run WHERE finished > 0 AND finished < ?`, before.UnixMicro())
}

// Delete deletes a run that has finished, with its entries; one that has not stays.
func (j *Journal) Delete(ctx context.Context, runID string) error {
	_, err := j.f.Exec(ctx, `DELETE FROM run WHERE id = ? AND finished > 0`, runID)
	return err
}
