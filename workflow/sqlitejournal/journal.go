// Package sqlitejournal stores the journals of workflow runs in a SQLite file. Another process can inspect and resume
// an interrupted run.
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

// component defines the package's tables. Times are microseconds since 1970; 0 means no time.
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
`, `
ALTER TABLE run ADD COLUMN step TEXT NOT NULL DEFAULT '';
ALTER TABLE run ADD COLUMN error TEXT NOT NULL DEFAULT '';
ALTER TABLE run ADD COLUMN tokens_in INTEGER NOT NULL DEFAULT 0;
ALTER TABLE run ADD COLUMN tokens_out INTEGER NOT NULL DEFAULT 0;
ALTER TABLE run ADD COLUMN tokens_cached INTEGER NOT NULL DEFAULT 0;
ALTER TABLE run ADD COLUMN turns INTEGER NOT NULL DEFAULT 0;
ALTER TABLE run ADD COLUMN calls INTEGER NOT NULL DEFAULT 0;
ALTER TABLE run ADD COLUMN estimated INTEGER NOT NULL DEFAULT 0;
ALTER TABLE run ADD COLUMN cost REAL;
CREATE TABLE transcript (
	run   TEXT NOT NULL REFERENCES run (id) ON DELETE CASCADE,
	seq   INTEGER NOT NULL,
	path  TEXT NOT NULL,
	ended INTEGER NOT NULL,
	data  TEXT NOT NULL,
	PRIMARY KEY (run, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX transcript_path ON transcript (run, path);
CREATE INDEX transcript_ended ON transcript (ended);
`, `
CREATE TABLE approval (
	id TEXT PRIMARY KEY, run TEXT REFERENCES run (id) ON DELETE CASCADE,
	asked INTEGER NOT NULL, answer TEXT, data TEXT NOT NULL
) STRICT, WITHOUT ROWID;
`}}
}

// Journal is a [runstore.Store] in a file. It is safe for concurrent use, and several processes may use the file.
type Journal struct {
	// Transcripts keeps the conversations of finished attempts until PruneTranscripts. Set it before the first use.
	Transcripts bool

	f           *sqlitefile.File
	owner, note string // owner and note of new runs
}

// Open opens the file at path and creates it if it does not exist. Other components may use the same file.
func Open(ctx context.Context, path string) (*Journal, error) {
	f, err := sqlitefile.Open(ctx, path, component())
	if err != nil {
		return nil, err
	}
	return &Journal{f: f}, nil
}

// Close closes the file.
func (j *Journal) Close() error { return j.f.Close() }

// errGap means an entry does not follow the run's last entry, because another process has resumed the run.
var errGap = errors.New("the entry does not follow the run's last entry")

// For returns the journal for runs of an owner from Join of the file's session store. note is for the process resuming
// these runs.
func (j *Journal) For(owner, note string) workflow.Journal {
	return &Journal{j.Transcripts, j.f, owner, note}
}

// Append implements [workflow.Journal]. When Append returns nil, the entry is on disk. If the entry's number exists or
// leaves a gap, the error wraps backend.ErrExists: a run has only one writer.
func (j *Journal) Append(ctx context.Context, e workflow.Entry) error {
	err := j.f.Tx(ctx, func(tx *sql.Tx) error {
		if e.Kind == workflow.EventRunStarted && e.Seq == 1 {
			if _, err := tx.ExecContext(ctx, `
INSERT INTO run (id, workflow, hash, started, finished, outcome, owner, note, cancel)
VALUES (?, ?, ?, ?, 0, '', ?, ?, 0)`,
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
		return j.insert(ctx, tx, e)
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

// insert adds an entry. The last entry ends the run. An agent's conversation is stored separately. When the attempt has
// finished, insert deletes the conversation or moves it to the kept ones.
func (j *Journal) insert(ctx context.Context, tx *sql.Tx, e workflow.Entry) error {
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
		return err
	case workflow.EventStepStarted:
	case workflow.EventStepFinished:
		err = j.endConversation(ctx, tx, e, `run = ?1 AND path = ?2`)
	case workflow.EventRunFinished:
		if err = j.endConversation(ctx, tx, e, `run = ?1`); err == nil {
			_, err = tx.ExecContext(ctx, `UPDATE run SET finished = ?, outcome = ? WHERE id = ?`,
				e.Time.UnixMicro(), string(e.Outcome), e.RunID)
		}
	default:
		return nil
	}
	if err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `UPDATE run SET step = CASE WHEN ?1 = '' THEN step ELSE ?1 END, error = ?2,
tokens_in = tokens_in + ?3, tokens_out = tokens_out + ?4, tokens_cached = tokens_cached + ?5,
turns = turns + ?6, calls = calls + ?7, estimated = estimated OR ?8, cost = coalesce(cost + ?9, cost, ?9)
WHERE id = ?10`, append(runstore.Progress(e), e.RunID)...)
	return err
}

// endConversation deletes parts of conversations or moves them to the kept ones, of which it deletes the oldest.
func (j *Journal) endConversation(ctx context.Context, tx *sql.Tx, e workflow.Entry, which string) (err error) {
	if j.Transcripts {
		_, err = tx.ExecContext(ctx,
			`INSERT INTO transcript SELECT run, seq, path, ?3, data FROM conversation WHERE `+which, e.RunID, e.Path, time.Now().
				UnixMicro())
		if err == nil {
			_, err = tx.ExecContext(ctx, `DELETE FROM transcript WHERE run = ?1 AND seq <= (SELECT max(seq) FROM (
SELECT seq, sum(octet_length(data)) OVER (ORDER BY seq DESC) AS size FROM transcript WHERE run = ?1) WHERE size > ?2)`,
				e.RunID, runstore.MaxTranscripts)
		}
	}
	if err == nil {
		_, err = tx.ExecContext(ctx, `DELETE FROM conversation WHERE `+which, e.RunID, e.Path)
	}
	return err
}

// Entries returns the entries of a run without the conversations of finished attempts. If the run is unknown, the error
// wraps backend.ErrNotFound. If the entries cannot be read, the error wraps runstore.ErrDamaged.
func (j *Journal) Entries(ctx context.Context, runID string) ([]workflow.Entry, error) {
	list, err := j.EntriesAfter(ctx, runID, 0)
	return runstore.Check(ctx, j, runID, list, err)
}

// EntriesAfter returns the entries of a run after a number, as Entries does. If there are none, the list is empty.
func (j *Journal) EntriesAfter(ctx context.Context, runID string, seq int64) ([]workflow.Entry, error) {
	return j.entries(ctx, `SELECT e.data, c.data FROM entry e LEFT JOIN conversation c ON c.run = e.run AND c.seq = e.seq
WHERE e.run = ? AND e.seq > ? ORDER BY e.seq`, runID, seq)
}

// Transcript returns the entries of kind EventStepProgress of a step with their parts of the conversation, including
// the kept parts of finished attempts.
func (j *Journal) Transcript(ctx context.Context, runID, path string) ([]workflow.Entry, error) {
	return j.entries(ctx, `SELECT e.data, c.data FROM (
SELECT seq, data FROM transcript WHERE run = ?1 AND path = ?2
UNION ALL SELECT seq, data FROM conversation WHERE run = ?1 AND path = ?2) c
JOIN entry e ON e.run = ?1 AND e.seq = c.seq ORDER BY e.seq`, runID, path)
}

func (j *Journal) entries(ctx context.Context, query string, args ...any) (list []workflow.Entry, err error) {
	err = j.f.Each(ctx, func(row sqlitefile.Row) error {
		var data string
		var part *string
		if err := row.Scan(&data, &part); err != nil {
			return err
		}
		e, err := runstore.Decode(data, part)
		list = append(list, e)
		return err
	}, query, args...)
	return list, err
}

// PruneTranscripts deletes the kept conversations of attempts finished before a time. It returns the number of deleted
// parts.
func (j *Journal) PruneTranscripts(ctx context.Context, before time.Time) (int64, error) {
	return j.f.Exec(ctx, `DELETE FROM transcript WHERE ended < ?`, before.UnixMicro())
}

// Finish ends a run for good, even if the entries are damaged: it appends an entry of kind EventRunFinished. If the run
// has finished, Finish does nothing.
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
		return j.insert(ctx, tx, workflow.Entry{
			RunID: runID, Seq: seq, Time: time.Now().UTC(), Kind: workflow.EventRunFinished, Outcome: outcome, Error: why,
		})
	})
}

// Lives reports whether an owner is alive, in any process on this host. The empty owner is never alive.
func (j *Journal) Lives(ctx context.Context, owner string) (bool, error) {
	if err := ctx.Err(); err != nil {
		return false, err
	}
	return j.f.Lives(owner)
}

// Take changes the owner of an unfinished run and clears a request to cancel it. If the run has another owner than
// from, the error wraps backend.ErrExists. If the run is unknown or finished, the error wraps backend.ErrNotFound.
func (j *Journal) Take(ctx context.Context, runID, from, to string) error {
	n, err := j.f.Exec(ctx, `UPDATE run SET owner = ?, cancel = 0 WHERE id = ? AND owner = ? AND finished = 0`, to, runID,
		from)
	if err != nil || n > 0 {
		return err
	}
	r, err := j.Run(ctx, runID)
	if err != nil {
		return err
	}
	return runstore.NotTaken(r)
}

// AskCancel requests the cancellation of a run from the owner. The owner sees the request in Run.Cancel.
func (j *Journal) AskCancel(ctx context.Context, runID string) error {
	_, err := j.f.Exec(ctx, `UPDATE run SET cancel = 1 WHERE id = ?`, runID)
	return err
}

// Runs returns a page of runs, newest first.
func (j *Journal) Runs(ctx context.Context, q runstore.Query) (runstore.Page, error) {
	started, id, err := q.Cursor()
	if err != nil {
		return runstore.Page{}, err
	}
	const which = ` WHERE (?1 = '' OR workflow = ?1)
AND (?2 = '' OR instr(lower(id || ' ' || workflow || ' ' || error), lower(?2)) > 0)
AND (?3 = '' OR instr(?3, ',' || outcome || ',') > 0) `
	total := 0
	err = j.f.Each(ctx, func(row sqlitefile.Row) error { return row.Scan(&total) },
		`SELECT count(*) FROM (SELECT 1 FROM run`+which+`LIMIT ?4)`, append(q.Filter(), runstore.MaxTotal)...)
	if err != nil {
		return runstore.Page{}, err
	}
	list, err := j.runs(ctx, which+`AND (started, id) < (?4, ?5) ORDER BY started DESC, id DESC LIMIT ?6`,
		append(q.Filter(), started.UnixMicro(), id, q.Limit+1)...)
	return q.Page(list, total), err
}

// Run returns a run. If the run is unknown, the error wraps backend.ErrNotFound.
func (j *Journal) Run(ctx context.Context, id string) (runstore.Run, error) {
	list, err := j.runs(ctx, ` WHERE id = ?`, id)
	return runstore.One(id, list, err)
}

func (j *Journal) runs(ctx context.Context, which string, args ...any) (list []runstore.Run, err error) {
	err = j.f.Each(ctx, func(row sqlitefile.Row) error {
		var r runstore.Run
		var started, finished int64
		err := row.Scan(&r.ID, &r.Workflow, &r.Hash, &started, &finished, &r.Outcome, &r.Owner, &r.Note, &r.Cancel,
			&r.Step, &r.Error, &r.Usage.In, &r.Usage.Out, &r.Usage.CacheRead,
			&r.Usage.Turns, &r.Usage.Calls, &r.Usage.Estimated, &r.CostUSD)
		r.Started = time.UnixMicro(started).UTC()
		if finished != 0 {
			r.Finished = time.UnixMicro(finished).UTC()
		}
		list = append(list, r)
		return err
	}, `SELECT id, workflow, hash, started, finished, outcome, owner, note, cancel,
step, error, tokens_in, tokens_out, tokens_cached, turns, calls, estimated, cost FROM run`+which, args...)
	return list, err
}

// Prune deletes the runs finished before a time, their entries, and older answered approval requests. It returns the
// number of deleted runs.
func (j *Journal) Prune(ctx context.Context, before time.Time) (n int64, err error) {
	if _, err = j.f.Exec(ctx, `DELETE FROM approval WHERE asked < ? AND answer > ''`, before.UnixMicro()); err == nil {
		n, err = j.f.Exec(ctx, `DELETE FROM run WHERE finished > 0 AND finished < ?`, before.UnixMicro())
	}
	return n, err
}

// Delete deletes a finished run and its entries. If the run has not finished, Delete does nothing.
func (j *Journal) Delete(ctx context.Context, runID string) error {
	_, err := j.f.Exec(ctx, `DELETE FROM run WHERE id = ? AND finished > 0`, runID)
	return err
}

// Ask stores a call waiting for approval.
func (j *Journal) Ask(ctx context.Context, a runstore.Approval) error {
	_, err := j.f.Exec(ctx, `INSERT INTO approval (id, run, asked, data)
SELECT ?, (SELECT id FROM run WHERE id = ?), ?, ?`, a.ID, a.Run, a.Asked.UnixMicro(), a)
	return err
}

// Answer stores the answer to a call and deletes the call's arguments. If the call already has an answer, the error
// wraps backend.ErrExists. If the call is unknown, the error wraps backend.ErrNotFound.
func (j *Journal) Answer(ctx context.Context, a runstore.Approval) error {
	n, err := j.f.Exec(ctx, `UPDATE approval SET answer = ?, data = ? WHERE id = ? AND answer IS NULL`, a.Answer, a, a.ID)
	if err != nil || n > 0 {
		return err
	}
	return runstore.NotAnswered(ctx, j, a, false)
}

// Approvals returns the call with an id. If id is empty, it returns the calls without an answer, oldest first.
func (j *Journal) Approvals(ctx context.Context, id string) (list []runstore.Approval, err error) {
	err = j.f.Each(ctx, func(row sqlitefile.Row) error {
		list = append(list, runstore.Approval{})
		return row.Scan(&list[len(list)-1])
	}, `SELECT data FROM approval WHERE id = ?1 OR ?1 = '' AND answer IS NULL ORDER BY asked, id`, id)
	return list, err
}
