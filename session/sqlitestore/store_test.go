package sqlitestore_test

import (
	"path/filepath"
	"testing"

	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/sqlitestore"
	"github.com/workcell-dev/workcell/session/storetest"
)

func TestStore(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) session.Store {
		t.Helper()
		s, err := sqlitestore.Open(t.Context(), filepath.Join(t.TempDir(), "state.db"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		return s
	})
}
