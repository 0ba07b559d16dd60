package sqlite_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/sqlitefile"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/record/sqlite"
)

// TestDamagedRecord verifies that one flipped bit in a record is reported as a damaged file, and that the sandbox is
// not treated as removed.
func TestDamagedRecord(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	open := func() *sqlite.Store {
		s, err := sqlite.Open(t.Context(), path)
		checktest.Must(t, err)
		return s
	}
	s := open()
	rec := record.Record{ID: "one", Key: record.UserKey("one"), Engine: "docker", State: record.Ready, Created: time.Now()}
	checktest.Must(t, s.Insert(t.Context(), rec))
	checktest.Must(t, s.Close())
	raw, err := os.ReadFile(path)
	checktest.Must(t, err)
	at := bytes.Index(raw, []byte(`"Created"`))
	if at < 0 {
		t.Fatal("the record is not in the file as JSON")
	}
	raw[at] ^= 1
	checktest.Must(t, os.WriteFile(path, raw, 0o600))
	s = open()
	defer s.Close() //nolint:errcheck // only read from
	for name, f := range map[string]func() error{
		"List":       func() error { _, err := s.List(t.Context()); return err },
		"List ready": func() error { _, err := s.List(t.Context(), record.Ready); return err },
		"Get":        func() error { _, err := s.Get(t.Context(), "one"); return err },
		"Touch":      func() error { return s.Touch(t.Context(), "one", time.Now(), time.Now()) },
	} {
		if err := f(); !errors.Is(err, sqlitefile.ErrCorrupt) {
			t.Errorf("%s: %v, want ErrCorrupt", name, err)
		}
	}
}
