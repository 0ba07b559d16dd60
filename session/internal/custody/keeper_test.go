package custody_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/record"
)

// hooked calls update instead of Update, unless update is nil. If takeErr is not nil, Take returns it.
type hooked struct {
	record.Store
	update  func(ctx context.Context, rec record.Record) error
	takeErr error
}

func (h *hooked) Take(ctx context.Context, id, from, to string) (record.Record, error) {
	if h.takeErr != nil {
		return record.Record{}, h.takeErr
	}
	return h.Store.Take(ctx, id, from, to)
}

func (h *hooked) Update(ctx context.Context, rec record.Record) error {
	if h.update != nil {
		return h.update(ctx, rec)
	}
	return h.Store.Update(ctx, rec)
}

func (h *hooked) Get(ctx context.Context, id string) (record.Record, error) {
	return h.Store.Get(context.WithoutCancel(ctx), id)
}

func newKeeper() (*custody.Keeper, *hooked) {
	store := &hooked{Store: record.NewMemoryStore()}
	log := slog.New(slog.DiscardHandler)
	closed := func(string) bool { return false }
	return &custody.Keeper{Store: store, Owner: "own", Shared: true, Now: time.Now, Open: closed, Log: log}, store
}

var errDown = errors.New("the store is down")

func down(context.Context, record.Record) error { return errDown }

// TestSaveAgain verifies which unwritten records are written, depending on the stored record.
func TestSaveAgain(t *testing.T) {
	t.Parallel()
	by := func(owner string, state record.State) record.Record {
		return record.Record{ID: "sbx_a", Owner: owner, State: state}
	}
	for name, test := range map[string]struct {
		unsaved, stored record.Record
		written         bool
	}{
		"given up":                       {by("", record.Ready), by("own", record.Ready), true},
		"given up in fact, used since":   {by("", record.Ready), by("", record.Ready), false},
		"given up in fact, ended since":  {by("", record.Ready), by("", record.Removing), false},
		"given up in fact, taken":        {by("", record.Ready), by("next", record.Ready), false},
		"removed after a loss":           {by("own", record.Removing), by("", record.Ready), true},
		"removed, taken":                 {by("own", record.Removing), by("next", record.Ready), false},
		"ownerless, removed":             {by("", record.Closed), by("", record.Ready), true},
		"another process's, removed":     {by("next", record.Closed), by("next", record.Ready), true},
		"back to a dead owner":           {by("dead", record.Ready), by("own", record.Ready), true},
		"back to a dead owner, in fact":  {by("dead", record.Ready), by("dead", record.Ready), false},
		"back to a dead owner, given up": {by("dead", record.Ready), by("", record.Ready), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k, store := newKeeper()
			test.unsaved.EngineID = "new"
			checktest.Must(t, store.Insert(t.Context(), test.stored))
			store.update = down
			k.Save(test.unsaved)
			store.update = nil
			k.SaveAgain()
			got, err := store.Get(t.Context(), "sbx_a")
			if written := got.EngineID == "new"; err != nil || written != test.written || k.Unsaved("sbx_a") {
				t.Errorf("%+v, %v, unsaved %v", got, err, k.Unsaved("sbx_a"))
			}
		})
	}
}

// TestSaveAgainKeepsNewer verifies that a retried record does not replace a newer one that has failed since.
func TestSaveAgainKeepsNewer(t *testing.T) {
	t.Parallel()
	for _, result := range []error{nil, errDown, backend.ErrExists} {
		k, store := newKeeper()
		old := record.Record{ID: "sbx_a", Owner: "own", State: record.Ready}
		newer := old
		newer.State = record.Removing
		checktest.Must(t, store.Insert(t.Context(), old))
		store.update = down
		k.Save(old)
		store.update = func(context.Context, record.Record) error {
			store.update = down
			k.Save(newer)
			return result
		}
		k.SaveAgain()
		store.update = nil
		k.SaveAgain()
		if got, err := store.Get(t.Context(), "sbx_a"); err != nil || got.State != record.Removing || k.Unsaved("sbx_a") {
			t.Errorf("after %v: %+v, %v", result, got, err)
		}
	}
}

// TestSaveAgainIsLimited verifies that an unreachable store delays a round of SaveAgain only once.
func TestSaveAgainIsLimited(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k, store := newKeeper()
		store.update = down
		for _, id := range []string{"sbx_a", "sbx_b", "sbx_c"} {
			k.Save(record.Record{ID: id, Owner: "own", State: record.Removing})
		}
		store.update = func(ctx context.Context, _ record.Record) error { <-ctx.Done(); return ctx.Err() }
		began := time.Now()
		k.SaveAgain()
		if took := time.Since(began); took != custody.StoreTimeout {
			t.Errorf("SaveAgain took %v", took)
		}
	})
}

// TestTake verifies that a manager that takes back a given up record keeps it, even if the result of giving it up is
// unknown, and that it takes a live record only once at a time.
func TestTake(t *testing.T) {
	t.Parallel()
	k, store := newKeeper()
	rec := record.Record{ID: "sbx_a", Owner: "own", State: record.Ready}
	checktest.Must(t, store.Insert(t.Context(), rec))
	store.update = func(ctx context.Context, rec record.Record) error {
		checktest.Must(t, store.Store.Update(ctx, rec))
		return errDown
	}
	rec.Owner = ""
	k.Save(rec)
	store.update = nil
	taken, err := k.Take(t.Context(), rec)
	checktest.Must(t, err)
	for _, again := range []record.Record{rec, taken} {
		if _, err := k.Take(t.Context(), again); !errors.Is(err, custody.ErrInTransition) {
			t.Errorf("another Take = %v", err)
		}
	}
	k.Done(rec.ID)
	k.SaveAgain()
	if got, err := store.Get(t.Context(), rec.ID); err != nil || got.Owner != "own" {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := k.Take(t.Context(), taken); !errors.Is(err, custody.ErrInTransition) {
		t.Errorf("Take of an own record = %v", err)
	}
}

// engine answers Get with info and err. Remove only counts.
type engine struct {
	backend.SandboxBackend
	info    backend.Info
	err     error
	removed int
}

func (e *engine) Get(context.Context, string) (backend.Info, error) { return e.info, e.err }

func (e *engine) Remove(context.Context, string, backend.RemoveOptions) error {
	e.removed++
	return nil
}

// TestRemoveRemains verifies that a sandbox is kept if its owner is another instance or unknown.
func TestRemoveRemains(t *testing.T) {
	t.Parallel()
	for want, e := range map[error]*engine{
		nil:                    {err: backend.ErrNotFound},
		backend.ErrExists:      {info: backend.Info{SessionID: "sbx_a", Instance: "other"}},
		backend.ErrUnavailable: {err: backend.ErrUnavailable},
	} {
		k, _ := newKeeper()
		k.Backend = e
		err := k.RemoveRemains(t.Context(), record.Record{ID: "sbx_a", EngineID: "e"}, true)
		if !errors.Is(err, want) || (e.removed == 1) != (want == nil) {
			t.Errorf("%v, want %v; removed %d times", err, want, e.removed)
		}
	}
}

// TestFailedTake verifies that a failed Take with an old record neither ends another caller's use of the sandbox nor
// frees the sandbox of an open session.
func TestFailedTake(t *testing.T) {
	t.Parallel()
	k, store := newKeeper()
	ready := record.Record{ID: "sbx_a", State: record.Ready}
	checktest.Must(t, store.Insert(t.Context(), ready))
	taken, err := k.Take(t.Context(), ready)
	checktest.Must(t, err)
	old := ready
	old.State, store.takeErr = record.Removing, errDown
	if _, err := k.Take(t.Context(), old); !errors.Is(err, errDown) {
		t.Fatalf("Take of a removed record = %v", err)
	}
	if _, err := k.Take(t.Context(), ready); !errors.Is(err, custody.ErrInTransition) || k.Unused(taken) {
		t.Errorf("Take during a use = %v, unused %v", err, k.Unused(taken))
	}
	k.Done(taken.ID)
	k.Open = func(string) bool { return true }
	if _, err := k.Take(t.Context(), ready); !errors.Is(err, errDown) || k.Unused(taken) {
		t.Errorf("Take of an open sandbox = %v, unused %v", err, k.Unused(taken))
	}
	if _, err := k.Take(t.Context(), taken); !errors.Is(err, custody.ErrInTransition) {
		t.Errorf("Take of an own record of an open sandbox = %v", err)
	}
}

// TestGiveUpUnused verifies that SaveAgain gives up a record after a Take that succeeded but returned an error, unless
// a session uses it, and that it tries again if the store fails.
func TestGiveUpUnused(t *testing.T) {
	t.Parallel()
	for _, open := range []bool{false, true} {
		k, store := newKeeper()
		k.Open = func(string) bool { return open }
		ready := record.Record{ID: "sbx_a", State: record.Ready}
		checktest.Must(t, store.Insert(t.Context(), ready))
		store.takeErr = errDown
		if _, err := k.Take(t.Context(), ready); !errors.Is(err, errDown) {
			t.Fatalf("Take = %v", err)
		}
		_, err := store.Store.Take(t.Context(), ready.ID, "", "own") // it succeeded in fact
		checktest.Must(t, err)
		for range 2 { // the store is unavailable
			k.SaveAgain()
			store.takeErr, store.update = nil, down
		}
		store.update = nil
		k.SaveAgain()
		if got, err := store.Get(t.Context(), ready.ID); err != nil || (got.Owner == "own") != open || k.Unsaved(ready.ID) {
			t.Errorf("open %v: %+v, %v, unsaved %v", open, got, err, k.Unsaved(ready.ID))
		}
	}
}
