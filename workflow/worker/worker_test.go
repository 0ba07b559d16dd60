//go:build !windows

package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
	"github.com/workcell-dev/workcell/session/record/postgres"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
	"github.com/workcell-dev/workcell/workflow/worker"
)

// patience is how long a test waits for an event.
const patience = 3 * time.Minute

func open(t *testing.T, url string) *worker.Queue {
	t.Helper()
	q, err := worker.Open(t.Context(), url)
	checktest.Must(t, err)
	t.Cleanup(q.Close)
	return q
}

// add adds a run of a one-step workflow to a queue.
func add(t *testing.T, q *worker.Queue) (*workflow.Workflow, string) {
	t.Helper()
	wf, err := workflow.Parse("w.yaml", []byte("id: w\nsteps: [{id: a, type: agent, agent: a}]\n"), nil)
	checktest.Must(t, err)
	e, err := wf.Begin(nil)
	if err == nil {
		err = q.Add(t.Context(), e, "")
	}
	checktest.Must(t, err)
	return wf, e.RunID
}

// joined returns an owner that lives until leave is called or the test ends.
func joined(t *testing.T, url string) (owner string, leave func() error) {
	t.Helper()
	s, err := postgres.Open(t.Context(), url)
	checktest.Must(t, err)
	t.Cleanup(func() { s.Close() })
	owner, leave, err = s.Join(t.Context())
	checktest.Must(t, err)
	t.Cleanup(func() { leave() }) //nolint:errcheck // the database is deleted with the test
	return owner, leave
}

// agents implements AgentRunner with a function.
type agents func(ctx context.Context) error

func (a agents) RunAgent(ctx context.Context, _ string, _ map[string]any) (workflow.AgentOutput, error) {
	return workflow.AgentOutput{Text: "done"}, a(ctx)
}

// resume returns a function executing runs of add's workflow.
func resume(q *worker.Queue, wf *workflow.Workflow, owner string, a agents) func(context.Context, runstore.Run) error {
	return func(ctx context.Context, r runstore.Run) error {
		return q.Carry(ctx, r, owner, nil, func(ctx context.Context, j workflow.Journal, entries []workflow.Entry) error {
			_, err := workflow.NewEngine(nil, a, &workflow.Options{Journal: j}).Resume(ctx, wf, entries)
			return err
		})
	}
}

// await waits until a run has ended and returns it.
func await(t *testing.T, q *worker.Queue, id string) runstore.Run {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if r, err := q.Journal().Run(t.Context(), id); err != nil || !r.Finished.IsZero() {
			checktest.Must(t, err)
			return r
		}
	}
	t.Fatalf("run %s does not end", id)
	return runstore.Run{}
}

// work runs a worker until stop is called or the test ends.
func work(t *testing.T, q *worker.Queue, o worker.Options) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- q.Work(ctx, o) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return stop
}

// TestOneCarries verifies that only one of several concurrent callers of Carry executes a run and that the others get
// an error.
func TestOneCarries(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	q := open(t, url)
	wf, id := add(t, q)
	r, err := q.Journal().Run(t.Context(), id)
	checktest.Must(t, err)
	var did, refused atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		owner, _ := joined(t, url)
		all.Go(func() {
			err := resume(q, wf, owner, func(context.Context) error {
				did.Add(1)
				return nil
			})(t.Context(), r)
			if errors.Is(err, backend.ErrExists) || errors.Is(err, backend.ErrNotFound) {
				refused.Add(1)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if did.Load() != 1 || refused.Load() != 7 {
		t.Errorf("%d carried it out, %d were refused", did.Load(), refused.Load())
	}
}

// TestTwoWorkers verifies that two workers execute each of many runs once and do not exceed their MaxRuns.
func TestTwoWorkers(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	q := open(t, url)
	var mu sync.Mutex
	did, now, most := map[string]int{}, 0, 0
	var wf *workflow.Workflow
	var ids []string
	for range 20 {
		w, id := add(t, q)
		wf, ids = w, append(ids, id)
	}
	for range 2 {
		owner, _ := joined(t, url)
		work(t, open(t, url), worker.Options{MaxRuns: 2, Resume: func(ctx context.Context, r runstore.Run) error {
			return resume(q, wf, owner, func(context.Context) error {
				mu.Lock()
				did[r.ID]++
				now++
				most = max(most, now)
				mu.Unlock()
				time.Sleep(20 * time.Millisecond)
				mu.Lock()
				now--
				mu.Unlock()
				return nil
			})(ctx, r)
		}})
	}
	for _, id := range ids {
		r := await(t, q, id)
		mu.Lock()
		if r.Outcome != workflow.Succeeded || did[id] != 1 {
			t.Errorf("run %s: %s, done %d times", id, r.Outcome, did[id])
		}
		mu.Unlock()
	}
	mu.Lock()
	defer mu.Unlock()
	if most > 4 {
		t.Errorf("%d runs at once", most)
	}
}

// TestHandedOver verifies that a run whose worker shuts down, or whose owner dies, continues in another worker.
func TestHandedOver(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	q := open(t, url)
	wf, id := add(t, q)
	first, leave := joined(t, url)
	began := make(chan struct{}, 1)
	stop := work(t, open(t, url), worker.Options{Resume: func(ctx context.Context, r runstore.Run) error {
		err := resume(q, wf, first, func(ctx context.Context) error {
			began <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		})(ctx, r)
		return errors.Join(err, leave())
	}})
	<-began
	stop()
	if r, err := q.Journal().Run(t.Context(), id); err != nil || !r.Finished.IsZero() || r.Owner == first {
		t.Fatalf("%+v, %v", r, err)
	}
	second, _ := joined(t, url)
	work(t, q, worker.Options{Resume: resume(q, wf, second, func(context.Context) error { return nil })})
	if r := await(t, q, id); r.Outcome != workflow.Succeeded || r.Owner != second {
		t.Errorf("%+v", r)
	}
}

// TestLostOwner verifies that a run and the sandboxes of its owner are free at once if the owner is lost.
func TestLostOwner(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	q := open(t, url)
	_, id := add(t, q)
	r, err := q.Journal().Run(t.Context(), id)
	checktest.Must(t, err)
	owner, _ := joined(t, url)
	lost := make(chan struct{})
	close(lost)
	wait := func(ctx context.Context, _ workflow.Journal, _ []workflow.Entry) error {
		<-ctx.Done()
		return nil
	}
	checktest.Must(t, q.Carry(t.Context(), r, owner, lost, wait))
	lives, err := q.Journal().Lives(t.Context(), owner)
	if r, late := q.Journal().Run(t.Context(), id); late != nil || err != nil || lives || r.Owner == owner {
		t.Errorf("its owner lives: %v, %v; %+v, %v", lives, err, r, late)
	}
}

// TestReleaseWithoutDatabase verifies that a worker exits even if the database does not answer.
func TestReleaseWithoutDatabase(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t)
	q := open(t, server.URL)
	_, id := add(t, q)
	r, err := q.Journal().Run(t.Context(), id)
	checktest.Must(t, err)
	owner, _ := joined(t, server.URL)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- q.Carry(ctx, r, owner, nil, func(ctx context.Context, _ workflow.Journal, _ []workflow.Entry) error {
			server.Kill()
			stop()
			<-ctx.Done()
			if err := context.Cause(ctx); !errors.Is(err, workflow.ErrInterrupted) {
				t.Errorf("it ended with %v", err)
			}
			return nil
		})
	}()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("a run was released without a database")
		}
	case <-time.After(patience):
		t.Error("it waits for the database")
	}
}

// TestCancelAsked verifies that a run is canceled on request, even if the request came before a process took the run.
func TestCancelAsked(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	q := open(t, url)
	wf, queued := add(t, q)
	checktest.Must(t, q.Journal().AskCancel(t.Context(), queued))
	owner, _ := joined(t, url)
	began := make(chan struct{}, 2)
	work(t, open(t, url), worker.Options{Resume: resume(q, wf, owner, func(ctx context.Context) error {
		began <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})})
	if r := await(t, q, queued); r.Outcome != workflow.Cancelled {
		t.Errorf("canceled in the queue: %s", r.Outcome)
	}
	_, running := add(t, q)
	<-began
	checktest.Must(t, q.Journal().AskCancel(t.Context(), running))
	if r := await(t, q, running); r.Outcome != workflow.Cancelled {
		t.Errorf("canceled while it ran: %s", r.Outcome)
	}
}

// TestCancelAskedBetween verifies that a request to cancel a run is kept while an ownerless run gets an owner and
// becomes ownerless again.
func TestCancelAskedBetween(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	q := open(t, url)
	_, id := add(t, q)
	r, err := q.Journal().Run(t.Context(), id) // state before the request
	checktest.Must(t, errors.Join(err, q.Journal().AskCancel(t.Context(), id)))
	owner, _ := joined(t, url)
	if err := q.Carry(t.Context(), r, owner, nil, func(ctx context.Context, _ workflow.Journal, _ []workflow.Entry) error {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(patience):
			return errors.New("the run was not canceled")
		}
	}); err != nil {
		t.Error(err)
	}
	if r, err := q.Journal().Run(t.Context(), id); err != nil || !r.Cancel || r.Owner == owner {
		t.Errorf("handed back: %+v, %v", r, err)
	}
}

// TestLostClaim verifies that a run is executed even if a dead worker has claimed the row, or if the row's not_before
// comes from a clock that was ahead.
func TestLostClaim(t *testing.T) {
	t.Parallel()
	for what, spoil := range map[string]string{
		"taken": `UPDATE queued SET worker = 'dead'`,
		"ahead": `UPDATE queued SET not_before = now() + interval '1 year'`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			url := pgtest.Database(t)
			q := open(t, url)
			wf, id := add(t, q)
			pgtest.Exec(t, url+"&search_path=workcell", spoil)
			owner, _ := joined(t, url)
			work(t, q, worker.Options{Resume: resume(q, wf, owner, func(context.Context) error { return nil })})
			if r := await(t, q, id); r.Outcome != workflow.Succeeded {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestPanics verifies that a panic in Resume ends neither the worker nor the run.
func TestPanics(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	q := open(t, url)
	wf, id := add(t, q)
	owner, _ := joined(t, url)
	var tried atomic.Bool
	work(t, q, worker.Options{Resume: func(ctx context.Context, r runstore.Run) error {
		if !tried.Swap(true) {
			panic("of the test")
		}
		return resume(q, wf, owner, func(context.Context) error { return nil })(ctx, r)
	}})
	if r := await(t, q, id); r.Outcome != workflow.Succeeded {
		t.Errorf("%+v", r)
	}
}

// TestFiles verifies that files are stored unchanged and atomically and that their size is limited.
func TestFiles(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	q := open(t, url)
	get := func(name string) (string, error) {
		var b bytes.Buffer
		err := q.Get(t.Context(), "run_1", name, &b)
		return b.String(), err
	}
	for _, size := range []int{0, 1, 1 << 20, 1<<20 + 1, 3 << 20} {
		want := strings.Repeat("x", size)
		checktest.Must(t, q.Put(t.Context(), "run_1", "f", strings.NewReader(want)))
		if got, err := get("f"); err != nil || got != want {
			t.Errorf("%d bytes: %d bytes, %v", size, len(got), err)
		}
	}
	replaces := writerFunc(func(p []byte) (int, error) { // as if another process replaced the file during the read
		return len(p), q.Put(t.Context(), "run_1", "f", strings.NewReader(strings.Repeat("y", 3<<20)))
	})
	if err := q.Get(t.Context(), "run_1", "f", replaces); err == nil || !strings.Contains(err.Error(), "replaced") {
		t.Errorf("a file that is replaced while it is read: %v", err)
	}
	if err := q.Put(t.Context(), "run_1", "f", failing{}); !errors.Is(err, errFailing) {
		t.Errorf("%v, want errFailing", err)
	}
	if err := q.Put(t.Context(), "run_1", "f", bytes.NewReader(make([]byte, worker.MaxFileBytes+1))); !errors.Is(err, backend.ErrTooLarge) {
		t.Errorf("%v, want ErrTooLarge", err)
	}
	pgtest.Exec(t, url, `INSERT INTO workcell.run_file
SELECT 'run_1', 'large', part, decode(repeat('78', 1048576), 'hex') FROM generate_series(0, 64) part`)
	if _, err := get("large"); !errors.Is(err, backend.ErrTooLarge) {
		t.Errorf("a large file: %v, want ErrTooLarge", err)
	}
	if got, err := get("f"); err != nil || len(got) != 3<<20 {
		t.Errorf("after those: %d bytes, %v", len(got), err)
	}
	checktest.Must(t, q.Drop(t.Context(), "run_1", ""))
	if _, err := get("f"); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("dropped: %v, want ErrNotFound", err)
	}
}

// TestPruneOfParts verifies that Prune deletes the parts of an interrupted upload, even if the run is known.
func TestPruneOfParts(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	q := open(t, url)
	_, id := add(t, q)
	for _, name := range []string{"made", "made~PART"} {
		checktest.Must(t, q.Put(t.Context(), id, name, strings.NewReader("x")))
	}
	pgtest.Exec(t, url, `UPDATE workcell.run_file SET added = added - interval '2 days'`)
	checktest.Must(t, q.Prune(t.Context()))
	checktest.Must(t, q.Get(t.Context(), id, "made", io.Discard))
	if err := q.Get(t.Context(), id, "made~PART", io.Discard); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("the parts: %v, want ErrNotFound", err)
	}
}

var errFailing = errors.New("cannot be read")

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, errFailing }

// TestLog verifies that the log lines of several processes are read in order, starting at the reader's position, and
// that the log's size is limited.
func TestLog(t *testing.T) {
	t.Parallel()
	q := open(t, pgtest.Database(t))
	_, id := add(t, q)
	heard := make(chan struct{}, 100)
	go q.WatchLog(t.Context(), id, func() { heard <- struct{}{} }) //nolint:errcheck // it ends with the test
	<-heard                                                        // waits until it listens
	first := q.NewLog(t.Context(), id)
	fmt.Fprintln(first, "one\x00\xff")
	first.Close()
	<-heard
	text, place, ended, err := q.ReadLog(t.Context(), id, 0)
	if text != "one\uFFFD\uFFFD\n" || ended || err != nil {
		t.Errorf("%q, %v, %v", text, ended, err)
	}
	second := q.NewLog(t.Context(), id)
	fmt.Fprint(second, strings.Repeat("x", 10<<20))
	fmt.Fprint(second, "more")
	second.End()
	second.Close()
	text, _, ended, err = q.ReadLog(t.Context(), id, place)
	if text != "the log is truncated here\n" || !ended || err != nil {
		t.Errorf("%d bytes, %v, %v", len(text), ended, err)
	}
}

// connect returns a connection that is closed at the end of the test.
func connect(t *testing.T, url string) *pgx.Conn {
	conn, err := pgx.Connect(t.Context(), url)
	checktest.Must(t, err)
	t.Cleanup(func() { conn.Close(context.Background()) }) //nolint:errcheck // the connection is idle
	return conn
}

// TestLogRepeated verifies that lines are added once even if the answer to the first attempt is lost.
func TestLogRepeated(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	q := open(t, url)
	_, id := add(t, q)
	conn := connect(t, url)
	write := func(again bool, line string, ended bool) {
		checktest.Must(t, pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
			return worker.WriteLog(t.Context(), tx, again, id, line, ended)
		}))
	}
	for _, line := range []string{"one\n", "one\n", "two\n"} {
		write(false, line, false)
		write(true, line, false)
	}
	slow := connect(t, url)
	first, err := slow.Begin(t.Context())
	checktest.Must(t, err)
	checktest.Must(t, worker.WriteLog(t.Context(), first, false, id, "three\n", true))
	committed := make(chan error, 1)
	time.AfterFunc(200*time.Millisecond, func() { committed <- first.Commit(t.Context()) })
	write(true, "three\n", true) // before the first attempt has ended
	checktest.Must(t, <-committed)
	if text, _, ended, err := q.ReadLog(t.Context(), id, 0); text != "one\none\ntwo\nthree\n" || !ended || err != nil {
		t.Errorf("%q, %v, %v", text, ended, err)
	}
}

// TestLogClosedWhileItWrites verifies that Close waits until all lines are written, even after the lines of another
// process that has not committed yet.
func TestLogClosedWhileItWrites(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	q := open(t, url)
	_, id := add(t, q)
	conn := connect(t, url)
	tx, err := conn.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), worker.AppendLog, id, "first\n", false)
	}
	checktest.Must(t, err)
	log := q.NewLog(t.Context(), id)
	fmt.Fprintln(log, "why")
	watcher := connect(t, url) // within a transaction, statistics do not change
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for waits := false; !waits; time.Sleep(10 * time.Millisecond) {
		checktest.Must(t, watcher.QueryRow(ctx, `SELECT EXISTS (SELECT FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%run_log%')`).Scan(&waits))
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		log.Close()
	}()
	time.Sleep(100 * time.Millisecond) // gives a premature cancellation time to take effect
	checktest.Must(t, tx.Commit(t.Context()))
	<-closed
	if text, _, _, err := q.ReadLog(t.Context(), id, 0); text != "first\nwhy\n" || err != nil {
		t.Errorf("%q, %v", text, err)
	}
}

// TestUpgrade verifies that a worker executes the runs of a version 1 database and deletes the leftovers of ended runs,
// and that the old queue is removed.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	old := open(t, url)
	wf, id := add(t, old)
	_, ended := add(t, old)
	if err := errors.Join(old.Put(t.Context(), ended, worker.Needed, strings.NewReader("x")),
		old.Journal().Finish(t.Context(), ended, workflow.Cancelled, nil)); err != nil {
		t.Fatal(err)
	}
	pgtest.Exec(t, url, `ALTER TABLE workcell.queued DROP COLUMN not_before, DROP COLUMN worker;
CREATE TYPE workcell.river_job_state AS ENUM ('available', 'running');
CREATE TABLE workcell.river_job (id bigserial PRIMARY KEY, state workcell.river_job_state NOT NULL);
UPDATE workcell.component SET version = 1 WHERE name = 'queue'`)
	q := open(t, url)
	owner, _ := joined(t, url)
	work(t, q, worker.Options{Resume: resume(q, wf, owner, func(context.Context) error { return nil })})
	if r := await(t, q, id); r.Outcome != workflow.Succeeded {
		t.Errorf("%+v", r)
	}
	conn := connect(t, url)
	left := 1
	for deadline := time.Now().Add(patience); left > 0; time.Sleep(50 * time.Millisecond) {
		err := conn.QueryRow(t.Context(), `SELECT count(*) FROM (
SELECT run FROM workcell.queued UNION ALL SELECT run FROM workcell.run_file UNION ALL
SELECT relname FROM pg_class WHERE relnamespace = 'workcell'::regnamespace AND relname LIKE 'river%') l`).Scan(&left)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%d rows and tables are left: %v", left, err)
		}
	}
}
