package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/sqlitefile"
	"github.com/workcell-dev/workcell/session"
)

func TestInstanceIsMadeOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deep", "state")
	const commands = 20
	ids := make([]string, commands)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			a := &app{env: environ.Of(map[string]string{"WORKCELL_STATE_DIR": dir})}
			id, err := a.instance(session.NewID())
			if err != nil {
				t.Error(err)
			}
			ids[i] = id
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] || !isInstanceID(id) {
			t.Fatalf("ids = %q", ids)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the state directory holds %v, %v", entries, err)
	}
	if runtime.GOOS == "windows" {
		return // no Unix modes there
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, instanceFile): 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != want {
			t.Errorf("%s: mode %v, %v, want %v", path, st.Mode().Perm(), err, want)
		}
	}
}

func TestDamagedInstanceIsNotReplaced(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, instanceFile)
	if err := os.WriteFile(path, []byte("../../x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := &app{stateDirFlag: dir, env: environ.Of(nil)}
	_, err := a.instance(session.NewID())
	wantFailure(t, err, exitFailed, "does not hold an instance id")
	if raw, err := os.ReadFile(path); err != nil || string(raw) != "../../x\n" {
		t.Errorf("file = %q, %v", raw, err)
	}
}

// TestInstanceIsKept: the state file knows whose sandboxes it is about. A lost instance file is made again, and another one
// is an error.
func TestInstanceIsKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, instanceFile)
	a := &app{stateDirFlag: dir, env: environ.Of(nil)}
	store, err := a.openStore(t.Context(), stateNeeded)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	id, err := a.instanceOf(t.Context(), store)
	if err != nil || !isInstanceID(id) {
		t.Fatalf("id = %q, %v", id, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if other, err := a.instanceOf(t.Context(), nil); err != nil || !isInstanceID(other) { // as doctor does
		t.Errorf("without the records: %q, %v", other, err)
	}
	if again, err := a.instanceOf(t.Context(), store); err != nil || again != id {
		t.Errorf("without the file: %q, %v, want %q", again, err, id)
	}
	if err := os.WriteFile(path, []byte(session.NewID()+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = a.instanceOf(t.Context(), store)
	wantFailure(t, err, exitFailed, "of instance "+id)
}

func TestStateDirChoice(t *testing.T) {
	t.Parallel()
	base := t.TempDir()
	flag, variable, xdg := filepath.Join(base, "flag"), filepath.Join(base, "var"), filepath.Join(base, "xdg")
	for _, tc := range []struct {
		flag string
		vars map[string]string
		want string
	}{
		{flag, map[string]string{"WORKCELL_STATE_DIR": variable, "XDG_STATE_HOME": xdg}, flag},
		{"", map[string]string{"WORKCELL_STATE_DIR": variable, "XDG_STATE_HOME": xdg}, variable},
		{"", map[string]string{"XDG_STATE_HOME": xdg}, filepath.Join(xdg, "workcell")},
	} {
		a := &app{stateDirFlag: tc.flag, env: environ.Of(tc.vars)}
		if got, err := a.stateDir(); err != nil || got != tc.want {
			t.Errorf("stateDir = %q, %v, want %q", got, err, tc.want)
		}
	}
}

func TestStateDirThatCannotBeMade(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a := &app{stateDirFlag: filepath.Join(file, "below"), env: environ.Of(nil)}
	_, err := a.stateDir()
	wantFailure(t, err, exitUsage, "cannot make the state directory")
	var pe *os.PathError
	if !errors.As(err, &pe) {
		t.Errorf("error = %#v", err)
	}
}

// TestStateHints: whoever is told to move the file away is told when that does no harm.
func TestStateHints(t *testing.T) {
	t.Parallel()
	for _, err := range []error{sqlitefile.ErrCorrupt, sqlitefile.ErrForeign} {
		if hint := stateHint(fmt.Errorf("opening: %w", err)); !strings.Contains(hint, "no other workcell is running") {
			t.Errorf("%v: hint %q", err, hint)
		}
	}
}

func wantFailure(t *testing.T, err error, code int, text string) {
	t.Helper()
	if got, _ := classify(err); got != code || !strings.Contains(err.Error(), text) {
		t.Errorf("error = %v, code %d, want code %d and %q", err, got, code, text)
	}
}
