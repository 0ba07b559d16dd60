package sqlitefile_test

import (
	"bufio"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/sqlitefile"
)

var must = checktest.Must

func notes() sqlitefile.Component {
	return sqlitefile.Component{Name: "notes", Migrations: []string{`CREATE TABLE note (id INTEGER PRIMARY KEY, text TEXT NOT NULL) STRICT`}}
}

func open(t *testing.T, path string, c sqlitefile.Component) *sqlitefile.File {
	t.Helper()
	f, err := sqlitefile.Open(t.Context(), path, c)
	must(t, err)
	t.Cleanup(func() { must(t, f.Close()) })
	return f
}

func add(ctx context.Context, f *sqlitefile.File, text string) error {
	return f.Tx(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO note (text) VALUES (?)`, text)
		return err
	})
}

func count(t *testing.T, f *sqlitefile.File) (n int) {
	t.Helper()
	must(t, f.DB().QueryRowContext(t.Context(), `SELECT count(*) FROM note`).Scan(&n))
	return n
}

// crashWriter is the environment variable that makes the test binary write notes to the file in the value and report
// each stored note.
const crashWriter = "SQLITEFILE_TEST_WRITER"

func TestMain(m *testing.M) {
	if path := os.Getenv(crashWriter); path != "" {
		if err := writeForever(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	if path := os.Getenv(ownerProcess); path != "" {
		if err := ownForever(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func writeForever(path string) error {
	f, err := sqlitefile.Open(context.Background(), path, notes())
	if err != nil {
		return err
	}
	for i := 1; ; i++ {
		if err := add(context.Background(), f, strings.Repeat(strconv.Itoa(i)+" ", 200)); err != nil {
			return err
		}
		fmt.Println(i)
	}
}

// TestKilledWriters kills writers at arbitrary points. All reported notes must be stored.
func TestKilledWriters(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	kept := 0
	for round := range 5 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), crashWriter+"="+path)
		out, err := cmd.StdoutPipe()
		must(t, err)
		must(t, cmd.Start())
		lines := bufio.NewScanner(out)
		for range 3 + round*7 {
			if !lines.Scan() {
				t.Fatal("the writer ended before the kill")
			}
			kept++
		}
		must(t, cmd.Process.Kill())
		for lines.Scan() { // reports before the death
			kept++
		}
		_ = cmd.Wait() // killed
	}
	f := open(t, path, notes())
	if n := count(t, f); n < kept || n > kept+5 {
		t.Errorf("%d notes, %d were acknowledged by 5 writers", n, kept)
	}
}

func TestModes(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "made", "state.db")
	f := open(t, path, notes())
	must(t, add(t.Context(), f, "x"))
	for name, want := range map[string]os.FileMode{path: 0o600, path + "-wal": 0o600, filepath.Dir(path): 0o700 | os.ModeDir} {
		info, err := os.Stat(name)
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v, want %v", name, info, err, want)
		}
	}
}

func TestMigrations(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	old := open(t, path, notes())
	must(t, add(t.Context(), old, "kept"))
	next := notes()
	next.Migrations = append(next.Migrations, `ALTER TABLE note ADD COLUMN extra TEXT NOT NULL DEFAULT 'none'`)
	now := open(t, path, next)
	var extra string
	if err := now.DB().QueryRowContext(t.Context(), `SELECT extra FROM note WHERE text = 'kept'`).Scan(&extra); err != nil || extra != "none" {
		t.Errorf("after the migration: %q, %v", extra, err)
	}
	if _, err := sqlitefile.Open(t.Context(), path, notes()); !errors.Is(err, sqlitefile.ErrNewer) {
		t.Errorf("an old program opens a new file: %v, want ErrNewer", err)
	}
	broken := next
	broken.Migrations = append(broken.Migrations[:2:2], `CREATE TABLE half (id INTEGER); THIS IS NO SQL`)
	if _, err := sqlitefile.Open(t.Context(), path, broken); err == nil {
		t.Error("a migration that fails was taken")
	}
	if n := count(t, open(t, path, next)); n != 1 { // the failed migration has no effect
		t.Errorf("%d notes after a failed migration", n)
	}
	other := open(t, path, sqlitefile.Component{Name: "other", Migrations: []string{`CREATE TABLE thing (id INTEGER) STRICT`}})
	if _, err := other.DB().ExecContext(t.Context(), `SELECT id FROM thing`); err != nil {
		t.Errorf("a second component: %v", err)
	}
}

func TestDamage(t *testing.T) {
	t.Parallel()
	fresh := func(t *testing.T) string {
		path := filepath.Join(t.TempDir(), "state.db")
		f, err := sqlitefile.Open(t.Context(), path, notes())
		must(t, err)
		for i := range 200 {
			must(t, add(t.Context(), f, strings.Repeat(strconv.Itoa(i), 300)))
		}
		must(t, f.Close())
		return path
	}
	for name, test := range map[string]struct {
		damage func(t *testing.T, b []byte) []byte
		want   error
	}{
		"truncated":        {func(_ *testing.T, b []byte) []byte { return b[:len(b)/2] }, sqlitefile.ErrCorrupt},
		"cut in the head":  {func(_ *testing.T, b []byte) []byte { return b[:50] }, sqlitefile.ErrCorrupt},
		"overwritten page": {func(_ *testing.T, b []byte) []byte { copy(b[8192:], make([]byte, 4096)); return b }, sqlitefile.ErrCorrupt},
		"text":             {func(*testing.T, []byte) []byte { return []byte(strings.Repeat("not a database file\n", 100)) }, sqlitefile.ErrCorrupt},
		"other program's":  {func(_ *testing.T, b []byte) []byte { copy(b[68:], []byte{1, 2, 3, 4}); return b }, sqlitefile.ErrForeign},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := fresh(t)
			b, err := os.ReadFile(path)
			must(t, err)
			b = test.damage(t, b)
			must(t, os.WriteFile(path, b, 0o600))
			if f, err := sqlitefile.Open(t.Context(), path, notes()); !errors.Is(err, test.want) {
				t.Errorf("Open: %v, %v, want %v", f, err, test.want)
			}
			after, err := os.ReadFile(path)
			if err != nil || string(after) != string(b) {
				t.Errorf("the refused file was changed: %d bytes before, %d after, %v", len(b), len(after), err)
			}
		})
	}
	t.Run("empty", func(t *testing.T) { // as after a crash before the first write
		t.Parallel()
		path := filepath.Join(t.TempDir(), "state.db")
		must(t, os.WriteFile(path, nil, 0o600))
		if n := count(t, open(t, path, notes())); n != 0 {
			t.Errorf("%d notes", n)
		}
	})
	t.Run("a link", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "state.db")
		must(t, os.Symlink(fresh(t), path))
		if _, err := sqlitefile.Open(t.Context(), path, notes()); !errors.Is(err, sqlitefile.ErrForeign) {
			t.Errorf("Open: %v, want ErrForeign", err)
		}
	})
}

// TestWaitsForOthers: a writer waits for another process's transaction, but not longer than the context.
func TestWaitsForOthers(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "state.db")
	a, b := open(t, path, notes()), open(t, path, notes())
	tx, err := a.DB().BeginTx(t.Context(), nil)
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := add(ctx, b, "too early"); err == nil {
		t.Error("a second writer did not wait")
	}
	done := make(chan error, 1)
	go func() { done <- add(context.Background(), b, "waited") }()
	if _, err := tx.ExecContext(t.Context(), `INSERT INTO note (text) VALUES ('first')`); err != nil {
		t.Fatal(err)
	}
	must(t, tx.Commit())
	must(t, <-done)
	if n := count(t, a); n != 2 {
		t.Errorf("%d notes, want 2", n)
	}
}

// TestOpenTogether verifies that several openers can create a file at the same time.
func TestOpenTogether(t *testing.T) {
	t.Parallel()
	for range 40 {
		path := filepath.Join(t.TempDir(), "state.db")
		var all errgroup.Group
		for range 8 {
			all.Go(func() error {
				f, err := sqlitefile.Open(context.Background(), path, notes())
				if err != nil {
					return err
				}
				return f.Close()
			})
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

// ending is the text "kept". It ends a context when a statement reads it.
type ending func()

func (e ending) Value() (driver.Value, error) {
	e()
	return "kept", nil
}

// TestContextEndsDuringStatement: Exec reports the effect of a statement during which the context ends.
func TestContextEndsDuringStatement(t *testing.T) {
	t.Parallel()
	f := open(t, filepath.Join(t.TempDir(), "state.db"), notes())
	ctx, cancel := context.WithCancel(t.Context())
	n, err := f.Exec(ctx, `INSERT INTO note (text) VALUES (?)`, ending(cancel))
	if err != nil || n != 1 || count(t, f) != 1 {
		t.Errorf("%d rows, %v; %d notes", n, err, count(t, f))
	}
	if _, err := f.Exec(ctx, `DELETE FROM note`); !errors.Is(err, context.Canceled) || count(t, f) != 1 {
		t.Errorf("after the end: %v; %d notes", err, count(t, f))
	}
}
