package sqlite_test

import (
	"errors"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/record/sqlite"
	"github.com/workcell-dev/workcell/session/record/storetest"
)

var must = checktest.Must

// TestEnv verifies that a sandbox's variables are deleted with the sandbox and not by other changes of its record.
func TestEnv(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	s, err := sqlite.Open(ctx, filepath.Join(t.TempDir(), "state.db"))
	must(t, err)
	defer s.Close()
	rec := record.Record{ID: "sbx_a", Key: record.UserKey("a"), State: record.Creating}
	if err := s.AddEnv(ctx, rec.ID, map[string]string{"A": "1"}); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("without a record: %v", err)
	}
	err = errors.Join(s.Insert(ctx, rec), s.AddEnv(ctx, rec.ID, map[string]string{"A": "1", "B": "2"}), s.AddEnv(ctx, rec.ID, map[string]string{"B": "3"}))
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

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) record.Store {
		t.Helper()
		s, err := sqlite.Open(t.Context(), filepath.Join(t.TempDir(), "state.db"))
		must(t, err)
		t.Cleanup(func() { must(t, s.Close()) })
		return s
	})
}
