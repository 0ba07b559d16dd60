//go:build linux

package session_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// brokenStore fails the operations that its fields select.
type brokenStore struct {
	record.Store
	insert, update, read atomic.Bool
}

var errDisk = errors.New("the store's disk is full")

func (b *brokenStore) Insert(ctx context.Context, rec record.Record) error {
	if b.insert.Load() {
		return errDisk
	}
	return b.Store.Insert(ctx, rec)
}

func (b *brokenStore) Update(ctx context.Context, rec record.Record) error {
	if b.update.Load() {
		return errDisk
	}
	return b.Store.Update(ctx, rec)
}

func (b *brokenStore) Get(ctx context.Context, id string) (record.Record, error) {
	if b.read.Load() {
		return record.Record{}, errDisk
	}
	return b.Store.Get(ctx, id)
}

// TestStoreFails verifies that a sandbox that cannot be recorded is not returned, and that an open sandbox can still be
// closed.
func TestStoreFails(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	store := &brokenStore{Store: record.NewMemoryStore()}
	m := newManager(t, e, &session.Options{Store: store, ReapEvery: -1})
	key := session.WorkflowKey("run_1", "default")
	store.insert.Store(true)
	if _, _, err := m.Open(t.Context(), key, testImage()); !errors.Is(err, errDisk) || e.creates.Load() != 0 {
		t.Errorf("Open = %v after %d creations", err, e.creates.Load())
	}
	store.insert.Store(false)
	store.update.Store(true)
	if _, _, err := m.Open(t.Context(), key, testImage()); !errors.Is(err, errDisk) || e.count() != 0 {
		t.Errorf("Open = %v, %d sandboxes left", err, e.count())
	}
	store.update.Store(false)
	m.Reap(t.Context()) // corrects the record, which still occupies the key
	mustOpen(t, m, key)
	s := mustOpen(t, m, session.WorkflowKey("run_2", "default"))
	store.update.Store(true)
	if err := s.Close(t.Context()); err != nil || e.count() != 1 {
		t.Errorf("Close = %v, %d sandboxes left", err, e.count())
	}
	store.update.Store(false)
	store.read.Store(true)
	if _, err := m.Lookup(t.Context(), s.Key().Scope(), s.ID()); !errors.Is(err, errDisk) || errors.Is(err, backend.ErrNotFound) {
		t.Errorf("Lookup = %v: a broken store is not an unknown id", err)
	}
}

// cutStore passes the first Insert, or the first Take, to cut, like a connection that fails during a commit.
type cutStore struct {
	record.Store
	takes bool
	once  atomic.Bool
	cut   func(ctx context.Context, commit func() error) error
}

func (c *cutStore) Insert(ctx context.Context, rec record.Record) error {
	if !c.takes && !c.once.Swap(true) {
		return c.cut(ctx, func() error { return c.Store.Insert(context.Background(), rec) })
	}
	return c.Store.Insert(ctx, rec)
}

func (c *cutStore) Take(ctx context.Context, id, from, to string) (record.Record, error) {
	if c.takes && !c.once.Swap(true) {
		return record.Record{}, c.cut(ctx, func() error {
			_, err := c.Store.Take(context.Background(), id, from, to)
			return err
		})
	}
	return c.Store.Take(ctx, id, from, to)
}

// TestUnknownResult verifies that a record does not stay with a manager that inserted or took it without learning of
// the success. The key can be opened, a sweep removes an unfinished creation, and the end of a run removes the sandbox.
func TestUnknownResult(t *testing.T) {
	t.Parallel()
	canceled := func(ctx context.Context, commit func() error, cancel func()) error {
		cancel()
		<-ctx.Done()
		return cmp.Or(commit(), ctx.Err())
	}
	unanswered := func(ctx context.Context, commit func() error, _ func()) error {
		if _, ok := ctx.Deadline(); ok {
			t.Error("the manager limits the store's patience")
		}
		return cmp.Or(commit(), backend.ErrUnavailable)
	}
	late := func(_ context.Context, commit func() error, _ func()) error {
		time.AfterFunc(50*time.Millisecond, func() {
			if err := commit(); err != nil {
				t.Error(err)
			}
		})
		return backend.ErrUnavailable
	}
	for name, test := range map[string]struct {
		end func(ctx context.Context, commit func() error, cancel func()) error
		err error
	}{
		"canceled":   {canceled, context.Canceled},
		"unanswered": {unanswered, backend.ErrUnavailable},
		"late":       {late, backend.ErrUnavailable},
	} {
		for _, takes := range []bool{false, true} {
			// fail returns a manager after the failed Open and the late commit.
			fail := func(t *testing.T) (*session.Manager, *engine, record.Store) {
				e, opts := newEngine(t), shared()
				if takes {
					first := dying(t, e, opts)
					mustOpen(t, first, runKey)
					first.Die()
				}
				ctx, cancel := context.WithCancel(t.Context())
				committed := make(chan struct{})
				store := &cutStore{Store: opts.Store, takes: takes}
				store.cut = func(ctx context.Context, commit func() error) error {
					return test.end(ctx, func() error { defer close(committed); return commit() }, cancel)
				}
				opts.Store = store
				m := newManager(t, e, opts)
				if _, _, err := m.Open(ctx, runKey, testImage()); !errors.Is(err, test.err) {
					t.Fatalf("Open = %v", err)
				}
				<-committed
				return m, e, store.Store
			}
			t.Run(fmt.Sprintf("%s, takes %v", name, takes), func(t *testing.T) {
				t.Parallel()
				m, e, _ := fail(t)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				_, created, err := m.Open(ctx, runKey, testImage())
				if err != nil || created == takes || e.count() != 1 {
					t.Errorf("Open = %v, %v, %d sandboxes", created, err, e.count())
				}
				m.Reap(t.Context()) // now the manager uses it
				if _, created, err = m.Open(ctx, runKey, testImage()); err != nil || created || e.count() != 1 {
					t.Errorf("Open = %v, %v, %d sandboxes", created, err, e.count())
				}

				m, _, store := fail(t)
				m.Reap(t.Context())
				recs, err := store.List(t.Context(), record.Creating)
				if err != nil || len(recs) != 0 {
					t.Errorf("after a sweep: %+v, %v", recs, err)
				}
				m, e, store = fail(t)
				checktest.Must(t, m.CloseScope(t.Context(), runKey.Scope()))
				recs, err = store.List(t.Context(), record.Creating, record.Ready)
				if err != nil || len(recs) != 0 || e.count() != 0 {
					t.Errorf("after the end of the run: %+v, %v, %d sandboxes", recs, err, e.count())
				}
			})
		}
	}
}

// TestRecords verifies the records of a sandbox from creation to removal.
func TestRecords(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	store := record.NewMemoryStore()
	m := newManager(t, e, &session.Options{Store: store, ReapEvery: -1, IdleTimeout: time.Hour})
	e.setHooks(func(ctx context.Context, spec backend.Spec) error {
		rec, err := store.Get(ctx, spec.ID)
		if err != nil || rec.State != record.Creating || rec.Key.String() != spec.Key || rec.Request == "" || rec.EngineID != "" {
			return fmt.Errorf("before the creation the record is %+v, %w", rec, err)
		}
		return nil
	}, nil, nil)
	s := mustOpen(t, m, record.AgentKey("run_1", "default"))
	rec, err := store.Get(t.Context(), s.ID())
	if err != nil || rec.State != record.Ready || rec.EngineID != s.Info().EngineID || !rec.Expires.Equal(rec.LastUsed.Add(time.Hour)) {
		t.Errorf("open: %+v, %v", rec, err)
	}
	e.murder(rec.EngineID)
	eventually(t, "the record says lost", func() bool {
		rec, err := store.Get(t.Context(), s.ID())
		return err == nil && rec.State == record.Ready && rec.KeepWorkspace && rec.Owner == ""
	})
	must(t, s.Close(t.Context()))
	if rec, err = store.Get(t.Context(), s.ID()); err != nil || rec.State != record.Closed {
		t.Errorf("closed: %+v, %v", rec, err)
	}
	e.setHooks(func(context.Context, backend.Spec) error { return backend.ErrImage }, nil, nil)
	refuses(t, m, session.WorkflowKey("run_1", "other"), testImage(), backend.ErrImage)
	if recs, err := store.List(t.Context()); err != nil || len(recs) != 1 {
		t.Errorf("a sandbox that was never made has a record: %+v, %v", recs, err)
	}
}

// TestPullProgress verifies that all waiting openers receive pull progress, and that canceled openers do not.
func TestPullProgress(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, e, nil)
	key := session.WorkflowKey("run_1", "default")
	step := make(chan struct{})
	e.setHooks(func(ctx context.Context, spec backend.Spec) error {
		for range 2 {
			<-step
			spec.OnPull(backend.PullProgress{Status: "Downloading"})
			step <- struct{}{}
		}
		return nil
	}, nil, nil)
	var heard [2]atomic.Int64
	first, leave := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	left := make(chan struct{})
	for i, ctx := range []context.Context{first, t.Context()} {
		wg.Go(func() {
			req := testImage()
			req.OnPull = func(backend.PullProgress) { heard[i].Add(1) }
			_, created, err := m.Open(ctx, key, req)
			if i == 1 && (err != nil || !created) || i == 0 && !errors.Is(err, context.Canceled) {
				t.Errorf("opener %d: created %v, %v", i, created, err)
			}
			if i == 0 {
				close(left)
			}
		})
		eventually(t, "it waits", func() bool { return m.Waiting(key) == i+1 })
	}
	eventually(t, "both listen", func() bool { return m.Listening(key) == 2 })
	step <- struct{}{}
	<-step
	leave()
	<-left
	step <- struct{}{}
	<-step
	wg.Wait()
	if heard[0].Load() != 1 || heard[1].Load() != 2 {
		t.Errorf("heard %d and %d times, want 1 and 2", heard[0].Load(), heard[1].Load())
	}
}

// ownerless is a store that treats its owner as dead while dead is true.
type ownerless struct {
	record.Store
	dead atomic.Bool
}

func (o *ownerless) Insert(ctx context.Context, rec record.Record) error {
	if o.dead.Load() {
		return record.ErrOwnerLost
	}
	return o.Store.Insert(ctx, rec)
}

func (o *ownerless) Update(ctx context.Context, rec record.Record) error {
	if o.dead.Load() {
		return record.ErrOwnerLost
	}
	return o.Store.Update(ctx, rec)
}

func (o *ownerless) Take(ctx context.Context, id, from, to string) (record.Record, error) {
	if o.dead.Load() {
		return record.Record{}, record.ErrOwnerLost
	}
	return o.Store.Take(ctx, id, from, to)
}

// TestOwnerLost verifies that a manager whose owner is treated as dead opens nothing, returns that error, and keeps its
// sandboxes. If the owner turns out to be alive, the next round removes them.
func TestOwnerLost(t *testing.T) {
	t.Parallel()
	e, opts := newEngine(t), shared()
	store := &ownerless{Store: opts.Store}
	opts.Store = store
	m := newManager(t, e, opts)
	removed := mustOpen(t, m, session.UserKey("lab"))
	store.dead.Store(true)
	for _, key := range []session.Key{session.UserKey("other"), session.WorkflowKey("run_1", "default")} {
		refuses(t, m, key, testImage(), record.ErrOwnerLost)
	}
	if err := removed.Close(t.Context()); !errors.Is(err, backend.ErrExists) || e.count() != 1 {
		t.Errorf("Close = %v, %d sandboxes left", err, e.count())
	}
	refuses(t, m, removed.Key(), testImage(), record.ErrOwnerLost)
	store.dead.Store(false)
	m.Reap(t.Context())
	if rec := recordOf(t, store, removed.ID()); rec.State != record.Closed || e.count() != 0 {
		t.Errorf("the record is %+v, %d sandboxes left", rec, e.count())
	}
}
