package state

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
	"github.com/workcell-dev/workcell/internal/sqlitefile"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/session/record/sqlite"
)

var must = checktest.Must

func TestInstanceIsMadeOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "deep", "state")
	const commands = 20
	ids := make([]string, commands)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			d, err := Locate(environ.Of(map[string]string{"WORKCELL_STATE_DIR": dir}), "")
			if err != nil {
				t.Error(err)
			}
			id, err := d.instance(record.NewID())
			if err != nil {
				t.Error(err)
			}
			ids[i] = id
		})
	}
	wg.Wait()
	for _, id := range ids {
		if id != ids[0] || !instanceID.MatchString(id) {
			t.Fatalf("ids = %q", ids)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 {
		t.Errorf("the state directory holds %v, %v", entries, err)
	}
	if runtime.GOOS == "windows" {
		return // Windows has no Unix modes
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
	must(t, os.WriteFile(path, []byte("../../x\n"), 0o600))
	_, err := Dir(dir).instance(record.NewID())
	wantFailure(t, err, hint.Failed, "does not contain an instance ID")
	if raw, err := os.ReadFile(path); err != nil || string(raw) != "../../x\n" {
		t.Errorf("file = %q, %v", raw, err)
	}
}

// TestInstanceIsKept verifies that the state file stores the instance id of the sandboxes. A lost instance file is
// recreated, and a different id is an error.
func TestInstanceIsKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, instanceFile)
	d := Dir(dir)
	store, err := sqlite.Open(t.Context(), d.File())
	must(t, err)
	defer store.Close()
	id, err := d.instanceWith(t.Context(), store)
	if err != nil || !instanceID.MatchString(id) {
		t.Fatalf("id = %q, %v", id, err)
	}
	must(t, os.Remove(path))
	if other, err := d.instanceWith(t.Context(), nil); err != nil || !instanceID.MatchString(other) { // like doctor
		t.Errorf("without the records: %q, %v", other, err)
	}
	if again, err := d.instanceWith(t.Context(), store); err != nil || again != id {
		t.Errorf("without the file: %q, %v, want %q", again, err, id)
	}
	must(t, os.WriteFile(path, []byte(record.NewID()+"\n"), 0o600))
	_, err = d.instanceWith(t.Context(), store)
	wantFailure(t, err, hint.Failed, "instance "+id)
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
		if got, err := Locate(environ.Of(tc.vars), tc.flag); err != nil || string(got) != tc.want {
			t.Errorf("Locate = %q, %v, want %q", got, err, tc.want)
		}
	}
}

func TestStateDirThatCannotBeMade(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	_, err := Locate(environ.Of(nil), filepath.Join(file, "below"))
	wantFailure(t, err, hint.Usage, "cannot create the state directory")
	var pe *os.PathError
	if !errors.As(err, &pe) {
		t.Errorf("error = %#v", err)
	}
}

// TestFind verifies that the flag takes precedence over the variable, and values other than database URLs are
// rejected.
func TestFind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env := environ.Of(map[string]string{Variable: "postgres://variable/db"})
	for flag, want := range map[string]string{"": "postgres://variable/db", "postgresql://flag/db": "postgresql://flag/db"} {
		if p, err := Find(env, flag, dir); err != nil || p.URL != want || string(p.Dir) != dir {
			t.Errorf("Find(%q) = %+v, %v", flag, p, err)
		}
	}
	_, err := Find(env, "/var/lib/state", dir)
	wantFailure(t, err, hint.Usage, "not the URL of a PostgreSQL database")
}

// TestSharedDatabase verifies that all users of a database have the same instance, whatever their directories, and that
// only one of them can claim a name at a time.
func TestSharedDatabase(t *testing.T) {
	t.Parallel()
	url := pgtest.Database(t)
	var ids []string
	places := []Place{{Dir: Dir(t.TempDir()), URL: url}, {Dir: Dir(t.TempDir()), URL: url}}
	for _, p := range places {
		records, err := p.OpenRecords(t.Context())
		must(t, err)
		defer records.Close() //nolint:errcheck // the database goes with the test
		id, err := p.Instance(t.Context(), records)
		must(t, err)
		ids = append(ids, id)
	}
	if ids[0] != ids[1] || !instanceID.MatchString(ids[0]) {
		t.Errorf("instances %q", ids)
	}
	leave, held, err := places[0].Claim(t.Context(), "reaperx")
	if held || err != nil {
		t.Fatal(held, err)
	}
	if _, held, err := places[1].Claim(t.Context(), "reaperx"); !held || err != nil {
		t.Errorf("held %v, %v", held, err)
	}
	must(t, leave())
}

// TestHint verifies that the hint to move the file away includes when this is safe.
func TestHint(t *testing.T) {
	t.Parallel()
	for _, err := range []error{sqlitefile.ErrCorrupt, sqlitefile.ErrForeign} {
		if got := Hint(fmt.Errorf("opening: %w", err)); !strings.Contains(got, "stop all other workcell processes") {
			t.Errorf("%v: hint %q", err, got)
		}
	}
	if got := Hint(sqlitefile.ErrReadOnly); !strings.HasPrefix(got, "run `workcell --state-dir DIR …`") {
		t.Errorf("hint %q", got)
	}
}

func wantFailure(t *testing.T, err error, kind hint.Kind, text string) {
	t.Helper()
	if h := hint.Of(err); h == nil || h.Kind != kind || !strings.Contains(err.Error(), text) {
		t.Errorf("error = %v (%+v), want %q", err, h, text)
	}
}
