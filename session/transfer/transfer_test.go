package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/sandbox"
)

var must = checktest.Must

// liar is a source with arbitrary entries, like a hostile sandbox.
type liar struct {
	inputSource
	entries []entry
	read    func(path string) io.Reader
}

func (*liar) self() entry                             { return entry{kind: sandbox.TypeDir, mode: 0o755} }
func (l *liar) list(context.Context) ([]entry, error) { return l.entries, nil }
func (l *liar) open(_ context.Context, e entry) (io.ReadCloser, error) {
	return io.NopCloser(l.read(e.path)), nil
}

func say(path string) io.Reader { return strings.NewReader("from " + path) }

// below returns the contents of a directory without following links.
func below(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		if found[filepath.ToSlash(rel)] = d.Type().String(); d.Type().IsRegular() {
			raw, err := os.ReadFile(p)
			found[filepath.ToSlash(rel)] = string(raw)
			return err
		}
		return nil
	})
	must(t, err)
	return found
}

func copyFrom(t *testing.T, from source, dst string) (failed string, err error) {
	t.Helper()
	to, err := openTarget(io.Discard, dst)
	must(t, err)
	var out strings.Builder
	c := copying{from: from, to: to, see: Observer{
		Progress: func(Event) {},
		Failed:   func(path string, reason error) { fmt.Fprintf(&out, "%s: %s\n", path, reason) },
	}}
	err = c.run(t.Context())
	return out.String(), err
}

// TestCopyOfHostileNames copies names that a sandbox could invent. It verifies that no file is written outside the
// destination and that valid names are copied.
func TestCopyOfHostileNames(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	dst := filepath.Join(top, "a", "dst")
	must(t, os.MkdirAll(filepath.Join(dst, "d"), 0o755))
	for name, target := range map[string]string{"up": "..", "abs": top, "d/up": "../..", "file": "../file"} {
		must(t, os.Symlink(target, filepath.Join(dst, filepath.FromSlash(name))))
	}
	before := below(t, dst)
	file := func(p string) entry { return entry{path: p, kind: sandbox.TypeFile, mode: 0o644} }
	dir := func(p string) entry { return entry{path: p, kind: sandbox.TypeDir, mode: 0o755} }
	l := &liar{read: say, entries: []entry{
		file("../x"), file("/x"), file(filepath.Join(top, "x")), file("d/../../x"), file(".."), file("."), file(""), file("a\x00b"),
		file("up/x"), file("abs/x"), file("d/up/x"), file("d"), file("nowhere/x"),
		dir("../y"), dir("/y"), dir("up/y"), dir("abs/y"), dir(""), dir("up"), dir("file"),
		file("file"), dir("e"), file("e/good"), file("d/good"), dir("d"), dir("."),
	}}
	out, err := copyFrom(t, l, dst)
	if h := hint.Of(err); h == nil || h.Kind != hint.Failed || !strings.Contains(err.Error(), "20 of 26 files") {
		t.Errorf("error %v\n%s", err, out)
	}
	want := map[string]string{"file": "from file", "e": "d---------", "e/good": "from e/good", "d/good": "from d/good"}
	for name, is := range before {
		if _, ok := want[name]; !ok {
			want[name] = is
		}
	}
	if diff := cmp.Diff(want, below(t, dst)); diff != "" {
		t.Errorf("in the destination (-want +got):\n%s\n%s", diff, out)
	}
	names, err := filepath.Glob(filepath.Join(top, "*"))
	if more, _ := filepath.Glob(filepath.Join(top, "a", "*")); err != nil || len(names)+len(more) != 2 {
		t.Errorf("outside of it: %v %v, %v", names, more, err)
	}
}

// TestBrokenCopyLeavesTheOldFile verifies that an interrupted copy keeps the old file.
func TestBrokenCopyLeavesTheOldFile(t *testing.T) {
	t.Parallel()
	dst := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dst, "old"), []byte("as it was"), 0o600))
	l := &liar{
		entries: []entry{{path: "new", kind: sandbox.TypeFile}, {path: "old", kind: sandbox.TypeFile}, {path: "whole", kind: sandbox.TypeFile, mode: 0o640}},
		read: func(path string) io.Reader {
			if path == "whole" {
				return say(path)
			}
			return io.MultiReader(strings.NewReader("half"), iotest.ErrReader(errors.New("broken off")))
		},
	}
	out, err := copyFrom(t, l, dst)
	if err == nil || out != "new: broken off\nold: broken off\n" {
		t.Errorf("error %v\n%s", err, out)
	}
	if diff := cmp.Diff(map[string]string{"old": "as it was", "whole": "from whole"}, below(t, dst)); diff != "" {
		t.Errorf("left behind (-want +got):\n%s", diff)
	}
}

// TestCopyTogether verifies that files are copied concurrently: they can only be read at the same time. An inner
// directory is listed before its parent.
func TestCopyTogether(t *testing.T) {
	t.Parallel()
	dst := t.TempDir()
	var both sync.WaitGroup
	both.Add(2)
	l := &liar{
		entries: []entry{
			{path: "d/e/2", kind: sandbox.TypeFile, mode: 0o644}, {path: "d/e", kind: sandbox.TypeDir, mode: 0o700},
			{path: "d", kind: sandbox.TypeDir, mode: 0o750}, {path: "d/1", kind: sandbox.TypeFile, mode: 0o644},
		},
		read: func(path string) io.Reader {
			both.Done()
			both.Wait()
			return say(path)
		},
	}
	if out, err := copyFrom(t, l, dst); err != nil || out != "" {
		t.Fatalf("%v\n%s", err, out)
	}
	want := map[string]string{"d": "d---------", "d/1": "from d/1", "d/e": "d---------", "d/e/2": "from d/e/2"}
	if diff := cmp.Diff(want, below(t, dst)); diff != "" {
		t.Errorf("copied (-want +got):\n%s", diff)
	}
	for name, mode := range map[string]fs.FileMode{"d": 0o750, "d/e": 0o700} {
		if st, err := os.Stat(filepath.Join(dst, name)); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
}

// TestCopyEndsAtOnce verifies that a fatal error ends running copies and starts no new ones.
func TestCopyEndsAtOnce(t *testing.T) {
	t.Parallel()
	dst := t.TempDir()
	var begun atomic.Int64
	lost := fmt.Errorf("%w: gone", backend.ErrLost)
	l := &liar{read: func(string) io.Reader {
		begun.Add(1)
		return iotest.ErrReader(lost)
	}}
	for i := range 1000 {
		l.entries = append(l.entries, entry{path: strconv.Itoa(i), kind: sandbox.TypeFile})
	}
	if out, err := copyFrom(t, l, dst); !errors.Is(err, backend.ErrLost) || out != "" {
		t.Errorf("%v\n%s", err, out)
	}
	if n := begun.Load(); n > 2*parallel {
		t.Errorf("%d files were begun", n)
	}
}

// TestWorkspaceName verifies that a sandbox cannot choose the name of the copied workspace.
func TestWorkspaceName(t *testing.T) {
	t.Parallel()
	if got := (&sandboxSource{at: "."}).place().base; got != "workspace" {
		t.Errorf("the workspace is copied as %q", got)
	}
}
