package worker

import (
	"context"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/workcell-dev/workcell/internal/postgres"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

// logChannel is notified with the run's id when a log has grown.
const logChannel = "workcell_log"

const (
	maxLogBytes = 8 << 20                // maximum of one Log
	flushEvery  = 200 * time.Millisecond // how long a line waits for other lines
	// flushTimeout is the timeout for writing lines and for waiting for the last lines.
	flushTimeout = 10 * time.Second
	// logLookEvery is the polling interval of a log in addition to notifications.
	logLookEvery = 5 * time.Second
)

// Log is a process's log of a run for users. It is an io.Writer that never returns an error. Text is written to the
// database every 200 ms. Text that cannot be written is dropped, because programs must not wait for observers. A Log
// accepts 8 MiB and drops the rest. It is safe for concurrent use.
type Log struct {
	q    *Queue
	run  string
	stop context.CancelFunc
	done chan struct{}

	mu      sync.Mutex // guards the fields below
	pending strings.Builder
	written int
	ended   bool // the run has ended
}

// NewLog returns a Log for the log of a run. The caller must close it.
func (q *Queue) NewLog(ctx context.Context, runID string) *Log {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	l := &Log{q: q, run: runID, stop: stop, done: make(chan struct{})}
	go l.work(ctx)
	return l
}

// Write adds text to the log. It always returns len(text) and nil.
func (l *Log) Write(text []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch room := maxLogBytes - l.written; {
	case room <= 0:
	case len(text) > room:
		l.pending.WriteString("the log is truncated here\n")
		l.written = maxLogBytes
	default:
		l.pending.Write(text)
		l.written += len(text)
	}
	return len(text), nil
}

// End marks the run as ended. Close writes the mark together with the remaining text, for ReadLog and FollowLog.
// Without Close, the mark is lost.
func (l *Log) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}

// Close writes the remaining text and the mark of End, and closes the log of this process. It waits at most 10 s for
// the database. Text written after Close is lost.
func (l *Log) Close() {
	l.stop()
	<-l.done
}

func (l *Log) work(ctx context.Context) {
	defer close(l.done)
	for tick := time.Tick(flushEvery); ; {
		select {
		case <-tick:
			l.flush(ctx, false)
		case <-ctx.Done():
			l.flush(ctx, true)
			return
		}
	}
}

// flush writes the pending text. If last is true, it also writes the end of the log. It does not depend on ctx, because
// text Close interrupts would be lost.
func (l *Log) flush(ctx context.Context, last bool) {
	l.mu.Lock()
	text, ended := l.pending.String(), l.ended && last
	l.pending.Reset()
	l.mu.Unlock()
	if text == "" && !ended {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	text = strings.ReplaceAll(strings.ToValidUTF8(text, "\uFFFD"), "\x00", "\uFFFD") // text PostgreSQL accepts
	_ = l.q.db.Tx(ctx, func(ctx context.Context, tx pgx.Tx, again bool) error {
		return writeLog(ctx, tx, again, l.run, text, ended)
	})
}

// writeLog adds lines to the log of a run. If again is true, an earlier attempt may have added them.
func writeLog(ctx context.Context, tx pgx.Tx, again bool, run, text string, ended bool) error {
	if again {
		if _, err := tx.Exec(ctx, `SELECT `+lockLog, run); err != nil { // the earlier attempt may not have ended yet
			return err
		}
		var there bool
		err := tx.QueryRow(ctx, lastInLog, run, text, ended).Scan(&there)
		if err != nil || there {
			return err
		}
	}
	_, err := tx.Exec(ctx, appendLog, run, text, ended)
	return err
}

// lastInLog reports whether the log of a run ends with the specified lines.
const lastInLog = `SELECT coalesce((SELECT text = $2::text AND ended = $3::boolean FROM workcell.run_log
WHERE run = $1::text ORDER BY id DESC LIMIT 1), false)`

// lockLog locks the log of a run until the end of the transaction.
const lockLog = `pg_advisory_xact_lock(hashtextextended('workcell.run_log ' || $1::text, 0))`

// appendLog adds lines to the log of a run. The lock serializes the writers of a run, so their ids are committed in
// order: a reader of an id never misses a lower one.
const appendLog = `WITH turn AS MATERIALIZED (SELECT ` + lockLog + `),
added AS (INSERT INTO workcell.run_log (run, text, ended) SELECT $1::text, $2::text, $3::boolean FROM turn RETURNING run)
SELECT pg_notify('` + logChannel + `', run) FROM added`

// ReadLog returns the text after a position in the log of a run and the new position. Position 0 is the beginning.
// ended reports whether a process has written the end of the run.
func (q *Queue) ReadLog(ctx context.Context, runID string,
	after int64) (text string, place int64, ended bool, err error) {
	err = q.db.Do(ctx, func(ctx context.Context, c postgres.Queryer, _ bool) error {
		var b strings.Builder
		place, ended = after, false
		rows, err := c.Query(ctx, `SELECT id, text, ended FROM workcell.run_log WHERE run = $1 AND id > $2 ORDER BY id`,
			runID, after)
		if err != nil {
			return err
		}
		var part string
		var last bool
		_, err = pgx.ForEachRow(rows, []any{&place, &part, &last}, func() error {
			b.WriteString(part)
			ended = ended || last
			return nil
		})
		text = b.String()
		return err
	})
	return text, place, ended, err
}

// FollowLog writes the log of a run to w as it grows. It returns the run once the run has ended, or has left the queue
// and has no living owner.
func (q *Queue) FollowLog(ctx context.Context, runID string, w io.Writer) (r runstore.Run, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	looks := runstore.News(ctx, logLookEvery,
		func(ctx context.Context, changed func()) error { return q.watchLog(ctx, runID, changed) },
		func(ctx context.Context, changed func()) error { return q.journal.Watch(ctx, runID, changed) })
	active := time.Now() // when the run was last known to be active, or when its end was first seen
	for place, ended, finished := int64(0), false, false; ; {
		continues, err := q.Has(ctx, runID) // before the run, which may end and leave the queue
		if err == nil {
			r, err = q.journal.Run(ctx, runID) // before the log, which then contains at least as much
		}
		if err == nil && !continues {
			continues, err = q.journal.Lives(ctx, r.Owner)
		}
		if err != nil {
			return r, err
		}
		text, behind, last, err := q.ReadLog(ctx, runID, place)
		if err == nil {
			place, ended = behind, ended || last
			_, err = io.WriteString(w, text)
		}
		if err != nil {
			return r, err
		}
		wasFinished := finished
		finished = !r.Finished.IsZero()
		switch silence := time.Since(active); {
		case finished && (ended || wasFinished && silence > flushTimeout): // a killed worker may not have written the end
			return r, nil
		case finished != wasFinished, !finished && continues:
			active = time.Now()
		case !finished && silence > 5*flushEvery: // the log of such a run has no end
			return r, nil
		}
		select {
		case <-looks:
		case <-ctx.Done():
			return r, ctx.Err()
		}
	}
}

// watchLog calls changed when it starts to listen and when the log of a run has grown, until ctx ends. If it cannot
// listen, it returns an error.
func (q *Queue) watchLog(ctx context.Context, runID string, changed func()) error {
	return q.db.Listen(ctx, logChannel, func(id string) {
		if id == "" || id == runID {
			changed()
		}
	})
}
