package postgres_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/internal/checktest"
	database "github.com/workcell-dev/workcell/internal/postgres"
	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/record/postgres"
	"github.com/workcell-dev/workcell/session/record/storetest"
)

var must = checktest.Must

func open(t *testing.T, url string) *postgres.Store {
	t.Helper()
	s, err := postgres.Open(t.Context(), url)
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	return s
}

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) record.Store {
		t.Helper()
		return open(t, pgtest.Database(t))
	})
}

// TestEnv verifies that a sandbox's variables are deleted with the sandbox and not by other changes of its record.
func TestEnv(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s := open(t, pgtest.Database(t))
	rec := record.Record{ID: "sbx_a", Key: record.UserKey("a"), State: record.Creating}
	if err := s.AddEnv(ctx, rec.ID, map[string]string{"A": "1"}); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("without a record: %v", err)
	}
	err := errors.Join(s.Insert(ctx, rec), s.AddEnv(ctx, rec.ID, map[string]string{"A": "1", "B": "2"}), s.AddEnv(ctx, rec.ID, map[string]string{"B": "3"}))
	must(t, err)
	if err := s.AddEnv(ctx, rec.ID, map[string]string{"C": strings.Repeat("c", 1<<20)}); !errors.Is(err, backend.ErrTooLarge) {
		t.Errorf("too much: %v", err)
	}
	want := map[string]string{"A": "1", "B": "3"}
	for _, state := range []record.State{record.Ready, record.Removing, record.Ready, record.Closed} {
		rec.State = state
		must(t, s.Update(ctx, rec))
		if state == record.Closed {
			want = map[string]string{}
		}
		if got, err := s.Env(ctx, rec.ID); err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: %v, %v", state, got, err)
		}
	}
}

// TestInstance verifies that the first SetInstance applies to all stores of the database.
func TestInstance(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	a, b := open(t, url), open(t, url)
	if id, err := a.Instance(t.Context()); id != "" || err != nil {
		t.Errorf("before: %q, %v", id, err)
	}
	must(t, errors.Join(a.SetInstance(t.Context(), "one"), b.SetInstance(t.Context(), "two")))
	for _, s := range []*postgres.Store{a, b} {
		if id, err := s.Instance(t.Context()); id != "one" || err != nil {
			t.Errorf("after: %q, %v", id, err)
		}
	}
}

// TestTakenForDead verifies that a manager with a dead owner opens no sandbox and immediately returns the reason.
func TestTakenForDead(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	b, err := memory.New(nil)
	must(t, err)
	t.Cleanup(func() { must(t, b.Close()) })
	m, err := session.NewManager(b, &session.Options{Store: open(t, url), Instance: "shared"})
	must(t, err)
	t.Cleanup(func() { must(t, m.Close(context.Background())) })
	pgtest.Exec(t, url, `DELETE FROM workcell.owner`)
	_, _, err = m.Open(t.Context(), record.UserKey("lab"), session.Request{Image: "test"})
	if !errors.Is(err, record.ErrOwnerLost) || !errors.Is(err, database.ErrLeaseLost) {
		t.Errorf("Open = %v", err)
	}
}
