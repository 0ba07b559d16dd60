// Package pgjournal stores the journals of workflow runs in a PostgreSQL database. A process on another host can
// inspect and resume an interrupted run.
package pgjournal

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/postgres"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// component defines the package's tables. Entries are JSON in text columns, because jsonb does not accept every string.
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
`, `
ALTER TABLE workcell.run ADD COLUMN step text NOT NULL DEFAULT '',
	ADD COLUMN error         text NOT NULL DEFAULT '',
	ADD COLUMN tokens_in     bigint NOT NULL DEFAULT 0,
	ADD COLUMN tokens_out    bigint NOT NULL DEFAULT 0,
	ADD COLUMN tokens_cached bigint NOT NULL DEFAULT 0,
	ADD COLUMN turns         bigint NOT NULL DEFAULT 0,
	ADD COLUMN calls         bigint NOT NULL DEFAULT 0,
	ADD COLUMN estimated     boolean NOT NULL DEFAULT false,
	ADD COLUMN cost          double precision;
CREATE TABLE workcell.transcript (
	run   text NOT NULL REFERENCES workcell.run (id) ON DELETE CASCADE,
	seq   bigint NOT NULL,
	path  text NOT NULL,
	ended timestamptz NOT NULL,
	data  text NOT NULL,
	PRIMARY KEY (run, seq)
);
CREATE INDEX transcript_path ON workcell.transcript (run, path);
CREATE INDEX transcript_ended ON workcell.transcript (ended);
`, `
CREATE TABLE workcell.approval (
	id text PRIMARY KEY, run text REFERENCES workcell.run (id) ON DELETE CASCADE,
	asked timestamptz NOT NULL, answer text, data text NOT NULL
);
`}}
}

// Journal is a [runstore.Store] in a database. It is safe for concurrent use, and several processes may use the
// database.
type Journal struct {
	// Transcripts keeps the conversations of finished attempts until PruneTranscripts. Set it before the first use.
	Transcripts bool

	db          *postgres.DB
	owner, note string // owner and note of new runs
}

// Open connects to a database URL, for example postgres://user@host/database. A session store may use the same
// database.
func Open(ctx context.Context, url string) (*Journal, error) {
	db, err := postgres.Open(ctx, url, component())
	if err != nil {
		return nil, err
	}
	return &Journal{db: db}, nil
}

// Close closes the connections.
func (j *Journal) Close() error {
	j.db.Close()
	return nil
}

// For returns the journal for runs of an owner from Join of the database's session store. note is for the process
// resuming these runs.
func (j *Journal) For(owner, note string) workflow.Journal {
	return &Journal{j.Transcripts, j.db, owner, note}
}

// Append implements [workflow.Journal]. When Append returns nil, the entry is on the server's disk. If the entry's
// number exists or leaves a gap, or if the run has another owner by now, the error wraps backend.ErrExists: a run has
// only one writer.
func (j *Journal) Append(ctx context.Context, e workflow.Entry) error {
	data, part, err := runstore.Encode(e)
	if err != nil {
		return err
	}
	query, args := j.statement(e, data, part)
	n, retried, err := j.change(ctx, query, args...)
	if err != nil || n > 0 {
		return err
	}
	return j.refusal(ctx, e, data, retried)
}

// change executes a statement and returns its number of rows. retried means that an earlier attempt may have succeeded.
func (j *Journal) change(ctx context.Context, query string, args ...any) (n int64, retried bool, err error) {
	err = j.db.Do(ctx, func(ctx context.Context, q postgres.Queryer, again bool) error {
		tag, err := q.Exec(ctx, query, args...)
		n, retried = tag.RowsAffected(), again
		return err
	})
	return n, retried, err
}

// Begin adds the first entry of a new run without an owner. In the same transaction it calls with, which may be called
// repeatedly. Therefore a process with access to the run also sees the changes of with. The run's owner is empty until
// a process takes the run.
func (j *Journal) Begin(ctx context.Context, e workflow.Entry, note string,
	with func(ctx context.Context, tx pgx.Tx) error) error {
	data, _, err := runstore.Encode(e)
	if err != nil {
		return err
	}
	return j.db.Tx(ctx, func(ctx context.Context, tx pgx.Tx, again bool) error {
		tag, err := tx.Exec(ctx, `INSERT INTO workcell.run (id, workflow, hash, started, owner, note, entries)
VALUES ($1, $2, $3, $4, '', $5, $6) ON CONFLICT DO NOTHING`, e.RunID, e.Workflow, e.Hash, e.Time, note, e.Seq)
		switch {
		case err != nil:
			return err
		case tag.RowsAffected() == 0 && again: // an earlier attempt has succeeded
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

// statement returns the statement that adds an entry if the run is in the expected state, in one round trip to the
// server. The first entry creates the run, and the last entry ends it.
func (j *Journal) statement(e workflow.Entry, data, part string) (query string, args []any) {
	args = []any{e.RunID, e.Seq, data, j.owner}
	change, more, result := "", "", ""
	switch e.Kind {
	case workflow.EventStepProgress:
		args = append(args, e.Path, part)
		more = `, part AS (INSERT INTO workcell.conversation SELECT id, $2, $5, $6 FROM locked)`
	case workflow.EventStepStarted:
		args, change = append(args, runstore.Progress(e)...), progress
	case workflow.EventStepFinished:
		args, change = append(append(args, runstore.Progress(e)...), e.Path), progress
		more = j.endConversation(`path = $14`)
	case workflow.EventRunFinished:
		args = append(append(args, runstore.Progress(e)...), e.Time, string(e.Outcome))
		change = progress + `, finished = $14, outcome = $15`
		more, result = j.endConversation(`true`), `pg_notify('`+channel+`', run)`
	}
	locked := `UPDATE workcell.run SET entries = $2` + change + ` WHERE id = $1 AND entries = $2 - 1
	AND ($4 = '' OR owner = $4 AND EXISTS (SELECT FROM living))`
	if e.Kind == workflow.EventRunStarted && e.Seq == 1 {
		args = append(args, e.Workflow, e.Hash, e.Time, j.note)
		locked = `INSERT INTO workcell.run (id, entries, owner, workflow, hash, started, note)
	SELECT $1, $2, $4, $5, $6, $7, $8 WHERE $4 = '' OR EXISTS (SELECT FROM living) ON CONFLICT DO NOTHING`
	}
	return `WITH living AS (SELECT FROM workcell.owner WHERE id = $4 FOR KEY SHARE),
locked AS (` + locked + ` RETURNING id)` + more + `,
added AS (INSERT INTO workcell.entry SELECT id, $2, $3 FROM locked RETURNING run)
SELECT ` + result + ` FROM added`, args
}

// progress changes a run by the parameters of runstore.Progress, which are 5 to 13.
const progress = `, step = CASE WHEN $5::text = '' THEN step ELSE $5 END, error = $6::text,
	tokens_in = tokens_in + $7::bigint, tokens_out = tokens_out + $8::bigint, tokens_cached = tokens_cached + $9::bigint,
	turns = turns + $10::bigint, calls = calls + $11::bigint, estimated = estimated OR $12::boolean,
	cost = coalesce(cost + $13::double precision, cost, $13)`

// endConversation returns the parts of a statement to delete parts of the conversations of the runs in locked, or move
// them to the kept ones, of which they delete the oldest. Parts the same statement moves are never deleted.
func (j *Journal) endConversation(which string) string {
	end := `, part AS (DELETE FROM workcell.conversation WHERE ` + which + `
	AND run IN (SELECT id FROM locked) RETURNING run, seq, path, data)`
	if !j.Transcripts {
		return end
	}
	return end + `, kept AS (INSERT INTO workcell.transcript SELECT run, seq, path, now(), data FROM part),
size AS (SELECT run, seq, sum(bytes) OVER (PARTITION BY run ORDER BY seq DESC) AS bytes FROM (
	SELECT run, seq, octet_length(data) AS bytes FROM workcell.transcript WHERE run IN (SELECT id FROM locked)
	UNION ALL SELECT run, seq, octet_length(data) FROM part) s),
trimmed AS (DELETE FROM workcell.transcript t USING size
	WHERE t.run = size.run AND t.seq = size.seq AND size.bytes > ` + strconv.Itoa(runstore.MaxTranscripts) + `)`
}

// refusal returns the reason why an entry was not added. If an earlier attempt may have added the entry, retried is true.
func (j *Journal) refusal(ctx context.Context, e workflow.Entry, data string, retried bool) error {
	var owner *string
	var lives, has bool
	err := j.db.Do(ctx, func(ctx context.Context, q postgres.Queryer, _ bool) error {
		return q.QueryRow(ctx, `SELECT (SELECT owner FROM workcell.run WHERE id = $1),
	EXISTS (SELECT FROM workcell.owner WHERE id = $4),
	EXISTS (SELECT FROM workcell.entry WHERE run = $1 AND seq = $2 AND data = $3)`,
			e.RunID, e.Seq, data, j.owner).Scan(&owner, &lives, &has)
	})
	why := "the entry does not follow the run's last entry"
	switch {
	case err != nil || retried && has:
		return err
	case j.owner != "" && !lives:
		return fmt.Errorf("owner %s: %w", j.owner, postgres.ErrLeaseLost)
	case owner == nil:
		return fmt.Errorf("run %s: %w", e.RunID, backend.ErrNotFound)
	case j.owner != "" && *owner != j.owner:
		why = "another process has resumed the run"
	}
	return fmt.Errorf("entry %d of run %s: %s: %w", e.Seq, e.RunID, why, backend.ErrExists)
}

// Entries returns the entries of a run without the conversations of finished attempts. If the run is unknown, the error
// wraps backend.ErrNotFound. If the entries cannot be read, the error wraps runstore.ErrDamaged.
func (j *Journal) Entries(ctx context.Context, runID string) ([]workflow.Entry, error) {
	list, err := j.EntriesAfter(ctx, runID, 0)
	return runstore.Check(ctx, j, runID, list, err)
}

// EntriesAfter returns the entries of a run after a number, as Entries does. If there are none, the list is empty.
func (j *Journal) EntriesAfter(ctx context.Context, runID string, seq int64) ([]workflow.Entry, error) {
	return collect(ctx, j, scanEntry, `SELECT e.data, c.data FROM workcell.entry e
LEFT JOIN workcell.conversation c ON c.run = e.run AND c.seq = e.seq
WHERE e.run = $1 AND e.seq > $2 ORDER BY e.seq`, runID, seq)
}

// Transcript returns the entries of kind EventStepProgress of a step with their parts of the conversation, including
// the kept parts of finished attempts.
func (j *Journal) Transcript(ctx context.Context, runID, path string) ([]workflow.Entry, error) {
	return collect(ctx, j, scanEntry, `SELECT e.data, c.data FROM (
	SELECT seq, data FROM workcell.transcript WHERE run = $1 AND path = $2
	UNION ALL SELECT seq, data FROM workcell.conversation WHERE run = $1 AND path = $2) c
JOIN workcell.entry e ON e.run = $1 AND e.seq = c.seq ORDER BY e.seq`, runID, path)
}

// collect returns the rows of a query.
func collect[T any](ctx context.Context, j *Journal, scan pgx.RowToFunc[T], query string,
	args ...any) (list []T, err error) {
	err = j.db.Do(ctx, func(ctx context.Context, q postgres.Queryer, _ bool) error {
		rows, err := q.Query(ctx, query, args...)
		if err != nil {
			return err
		}
		list, err = pgx.CollectRows(rows, scan)
		return err
	})
	return list, err
}

// PruneTranscripts deletes the kept conversations of attempts finished before a time. It returns the number of deleted
// parts.
func (j *Journal) PruneTranscripts(ctx context.Context, before time.Time) (int64, error) {
	return j.db.Exec(ctx, `DELETE FROM workcell.transcript WHERE ended < $1`, before)
}

func scanEntry(row pgx.CollectableRow) (e workflow.Entry, err error) {
	var data string
	var part *string
	if err := row.Scan(&data, &part); err != nil {
		return e, err
	}
	return runstore.Decode(data, part)
}

// Finish ends a run for good, even if the entries are damaged: it appends an entry of kind EventRunFinished. If the run
// has finished, Finish does nothing.
func (j *Journal) Finish(ctx context.Context, runID string, outcome workflow.Outcome, why *workflow.Error) error {
	return j.db.Tx(ctx, func(ctx context.Context, tx pgx.Tx, _ bool) error {
		var last int64
		var ended bool
		const state = `SELECT entries, finished IS NOT NULL FROM workcell.run WHERE id = $1 FOR UPDATE`
		err := tx.QueryRow(ctx, state, runID).Scan(&last, &ended)
		if errors.Is(err, pgx.ErrNoRows) {
			err = fmt.Errorf("run %s: %w", runID, backend.ErrNotFound)
		}
		if err != nil || ended {
			return err
		}
		e := workflow.Entry{RunID: runID, Seq: last + 1, Time: time.Now().UTC(), Kind: workflow.EventRunFinished,
			Outcome: outcome, Error: why}
		data, _, err := runstore.Encode(e)
		if err != nil {
			return err
		}
		query, args := (&Journal{Transcripts: j.Transcripts}).statement(e, data, "") // regardless of the owner
		_, err = tx.Exec(ctx, query, args...)
		return err
	})
}

// Lives reports whether an owner is alive, in any process on any host. The empty owner is never alive.
func (j *Journal) Lives(ctx context.Context, owner string) (bool, error) {
	return j.db.Lives(ctx, owner)
}

// Take changes the owner of an unfinished run and clears a request to cancel it. If the run has another owner than
// from, the error wraps backend.ErrExists. If the run is unknown or finished, the error wraps backend.ErrNotFound.
func (j *Journal) Take(ctx context.Context, runID, from, to string) error {
	return j.take(ctx, runID, from, to, false)
}

// Pass is like Take, but keeps a request to cancel the run for the next owner.
func (j *Journal) Pass(ctx context.Context, runID, from, to string) error {
	return j.take(ctx, runID, from, to, true)
}

func (j *Journal) take(ctx context.Context, runID, from, to string, asked bool) error {
	n, retried, err := j.change(ctx, `WITH taken AS (
	UPDATE workcell.run SET owner = $3, cancel = cancel AND $4
	WHERE id = $1 AND owner = $2 AND finished IS NULL RETURNING id)
SELECT pg_notify('`+channel+`', id) FROM taken`, runID, from, to, asked)
	if err != nil || n > 0 {
		return err
	}
	r, err := j.Run(ctx, runID)
	if err != nil || retried && r.Owner == to && r.Finished.IsZero() {
		return err
	}
	return runstore.NotTaken(r)
}

// AskCancel requests the cancellation of a run from the owner. The owner sees the request in Run.Cancel.
func (j *Journal) AskCancel(ctx context.Context, runID string) error {
	_, err := j.db.Exec(ctx, `WITH asked AS (UPDATE workcell.run SET cancel = true WHERE id = $1 RETURNING id)
SELECT pg_notify('`+channel+`', id) FROM asked`, runID)
	return err
}

// channel is notified with the run's id when a run is asked to cancel, is taken, or has ended, and with the id of an
// approval request when it is answered.
const channel = "workcell_run"

// Watch implements [runstore.Watcher].
func (j *Journal) Watch(ctx context.Context, id string, changed func()) error {
	return j.db.Listen(ctx, channel, func(news string) {
		if news == "" || news == id {
			changed()
		}
	})
}

// Runs returns a page of runs, newest first.
func (j *Journal) Runs(ctx context.Context, q runstore.Query) (runstore.Page, error) {
	started, id, err := q.Cursor()
	if err != nil {
		return runstore.Page{}, err
	}
	const which = ` WHERE ($1::text = '' OR workflow = $1)
AND ($2::text = '' OR strpos(lower(id || ' ' || workflow || ' ' || error), lower($2)) > 0)
AND ($3::text = '' OR strpos($3, ',' || outcome || ',') > 0) `
	total, err := collect(ctx, j, pgx.RowTo[int], `SELECT count(*) FROM (SELECT FROM workcell.run`+which+`LIMIT $4) found`,
		append(q.Filter(), runstore.MaxTotal)...)
	if err != nil {
		return runstore.Page{}, err
	}
	list, err := j.runs(ctx, which+`AND (started, id) < ($4, $5) ORDER BY started DESC, id DESC LIMIT $6`,
		append(q.Filter(), started, id, q.Limit+1)...)
	return q.Page(list, total[0]), err
}

// Run returns a run. If the run is unknown, the error wraps backend.ErrNotFound.
func (j *Journal) Run(ctx context.Context, id string) (runstore.Run, error) {
	list, err := j.runs(ctx, ` WHERE id = $1`, id)
	return runstore.One(id, list, err)
}

func (j *Journal) runs(ctx context.Context, which string, args ...any) ([]runstore.Run, error) {
	return collect(ctx, j, func(row pgx.CollectableRow) (r runstore.Run, err error) {
		var finished *time.Time
		err = row.Scan(&r.ID, &r.Workflow, &r.Hash, &r.Started, &finished, &r.Outcome, &r.Owner, &r.Note, &r.Cancel,
			&r.Step, &r.Error, &r.Usage.In, &r.Usage.Out, &r.Usage.CacheRead,
			&r.Usage.Turns, &r.Usage.Calls, &r.Usage.Estimated, &r.CostUSD)
		r.Started = r.Started.UTC()
		if finished != nil {
			r.Finished = finished.UTC()
		}
		return r, err
	}, `SELECT id, workflow, hash, started, finished, outcome, owner, note, cancel,
	step, error, tokens_in, tokens_out, tokens_cached, turns, calls, estimated, cost FROM workcell.run`+which, args...)
}

// Prune deletes the runs finished before a time, their entries, and older answered approval requests. It returns the
// number of deleted runs.
func (j *Journal) Prune(ctx context.Context, before time.Time) (n int64, err error) {
	if _, err = j.db.Exec(ctx, `DELETE FROM workcell.approval WHERE asked < $1 AND answer > ''`, before); err == nil {
		n, err = j.db.Exec(ctx, `DELETE FROM workcell.run WHERE finished < $1`, before)
	}
	return n, err
}

// Delete deletes a finished run and its entries. If the run has not finished, Delete does nothing.
func (j *Journal) Delete(ctx context.Context, runID string) error {
	_, err := j.db.Exec(ctx, `DELETE FROM workcell.run WHERE id = $1 AND finished IS NOT NULL`, runID)
	return err
}

// Ask stores a call waiting for approval.
func (j *Journal) Ask(ctx context.Context, a runstore.Approval) error {
	_, err := j.db.Exec(ctx, `INSERT INTO workcell.approval (id, run, asked, data)
SELECT $1, (SELECT id FROM workcell.run WHERE id = $2), $3, $4 ON CONFLICT DO NOTHING`, a.ID, a.Run, a.Asked, a)
	return err
}

// Answer stores the answer to a call and deletes the call's arguments. If the call already has an answer, the error
// wraps backend.ErrExists. If the call is unknown, the error wraps backend.ErrNotFound.
func (j *Journal) Answer(ctx context.Context, a runstore.Approval) error {
	n, retried, err := j.change(ctx, `WITH answered AS (
	UPDATE workcell.approval SET answer = $2, data = $3 WHERE id = $1 AND answer IS NULL RETURNING id)
SELECT pg_notify('`+channel+`', id) FROM answered`, a.ID, a.Answer, a)
	if err != nil || n > 0 {
		return err
	}
	return runstore.NotAnswered(ctx, j, a, retried)
}

// Approvals returns the call with an id. If id is empty, it returns the calls without an answer, oldest first.
func (j *Journal) Approvals(ctx context.Context, id string) ([]runstore.Approval, error) {
	return collect(ctx, j, pgx.RowTo[runstore.Approval],
		`SELECT data FROM workcell.approval WHERE id = $1 OR $1::text = '' AND answer IS NULL ORDER BY asked, id`, id)
}
