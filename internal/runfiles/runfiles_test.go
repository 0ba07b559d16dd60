package runfiles_test

import (
	"archive/zip"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/patch"
)

var must = checktest.Must

func file(content string) patch.Entry { return patch.Entry{Mode: 0o644, Content: []byte(content)} }

// TestSaveAndOpen: stored results are read back, including names that a sandbox may choose, and only the user can read
// them.
func TestSaveAndOpen(t *testing.T) {
	t.Parallel()
	d := runfiles.Dir(filepath.Join(t.TempDir(), "runs"))
	made := runfiles.Made{
		Source: "w.yaml", Workspace: "/home/me/project",
		Outputs: patch.Tree{"r.csv": file("1,2\n"), "d/about.json": file("x"), "d/e": {Mode: 0o755, Content: []byte{0, 1}}, "l": patch.NewLink([]byte("d/e"))},
		Patch: patch.Compare(
			patch.Tree{"a": file("1\n"), "gone": file("x\n"), "from": file("the same\n")},
			patch.Tree{"a": file("2\n"), "new": file(""), "to": file("the same\n"), "l": patch.NewLink([]byte("a"))}),
	}
	made.Patch.Omitted = []patch.Conflict{{Path: "big", Reason: "too big"}}
	must(t, d.Save("run_1", runfiles.Made{Outputs: patch.Tree{"before": file("")}}))
	must(t, d.Save("run_1", made)) // replaces the first results
	ar, err := d.Open("run_1")
	must(t, err)
	defer ar.Close()
	p, err := ar.Patch()
	must(t, err)
	if diff := cmp.Diff(made.Patch, p); diff != "" {
		t.Errorf("patch (-want +got):\n%s", diff)
	}
	tree, err := ar.Read(ar.Outputs("."))
	must(t, err)
	if diff := cmp.Diff(made.Outputs, tree); diff != "" {
		t.Errorf("outputs (-want +got):\n%s", diff)
	}
	if list := ar.Outputs("d"); len(list) != 2 || list[0].Path != "d/about.json" || list[1].Size != 2 {
		t.Errorf("below d: %v", list)
	}
	if ar.Workspace() != made.Workspace || ar.Source() != made.Source {
		t.Errorf("of %s for %s", ar.Source(), ar.Workspace())
	}
	// Results from another host do not determine where files are written, until this host saves results again.
	must(t, d.Fetched("run_1"))
	fetched, err := d.Open("run_1")
	must(t, err)
	must(t, d.Save("run_1", made))
	again, err := d.Open("run_1")
	must(t, err)
	if fetched.Workspace() != "" || again.Workspace() != made.Workspace {
		t.Errorf("fetched for %q, then made for %q", fetched.Workspace(), again.Workspace())
	}
	must(t, errors.Join(fetched.Close(), again.Close()))
	for name, want := range map[string]fs.FileMode{"": fs.ModeDir | 0o700, "run_1": fs.ModeDir | 0o700, "run_1/made.zip": 0o600} {
		if st, err := os.Stat(filepath.Join(string(d), name)); err != nil || st.Mode() != want {
			t.Errorf("%s: %v, %v", name, st.Mode(), err)
		}
	}
}

// TestTooMuchKept: a small archive with a huge unpacked size is refused. A database may contain such an archive.
func TestTooMuchKept(t *testing.T) {
	t.Parallel()
	d := runfiles.Dir(t.TempDir())
	must(t, d.Fetched("run_1"))
	f, err := os.Create(d.Made("run_1"))
	must(t, err)
	z := zip.NewWriter(f)
	for _, name := range []string{"outputs/a", "outputs/b"} {
		_, err := z.CreateRaw(&zip.FileHeader{Name: name, UncompressedSize64: 1 << 29})
		must(t, err)
	}
	about, err := z.Create("about.json")
	must(t, err)
	_, err = about.Write([]byte("{}"))
	must(t, errors.Join(err, z.Close(), f.Close()))
	if _, err := d.Open("run_1"); err == nil || !strings.Contains(err.Error(), "contains more than") {
		t.Errorf("%v", err)
	}
}

func TestNothingKept(t *testing.T) {
	t.Parallel()
	d := runfiles.Dir(t.TempDir())
	if _, err := d.Open("run_1"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v", err)
	}
	if ids, err := runfiles.Dir(filepath.Join(string(d), "none")).Runs(); err != nil || ids != nil {
		t.Errorf("%v, %v", ids, err)
	}
}

// TestPrune: old files are deleted unless their run is still known.
func TestPrune(t *testing.T) {
	t.Parallel()
	d := runfiles.Dir(t.TempDir())
	old := time.Now().Add(-time.Hour)
	for _, run := range []string{"old", "known", "new"} {
		must(t, d.Save(run, runfiles.Made{Outputs: patch.Tree{"f": file("x")}}))
		if run != "new" {
			must(t, os.Chtimes(filepath.Join(string(d), run), old, old))
		}
	}
	for _, hostile := range []string{"", "/", ".", "..", "run/.."} {
		must(t, d.Remove(hostile))
	}
	must(t, d.Prune(old.Add(time.Minute), func(run string) bool { return run == "known" }))
	ids, err := d.Runs()
	must(t, err)
	if diff := cmp.Diff([]string{"known", "new"}, ids); diff != "" {
		t.Errorf("left (-want +got):\n%s", diff)
	}
}

// TestRemoveBegun: a run ID with a pattern or a path cannot match another run. A file that is being written is kept.
func TestRemoveBegun(t *testing.T) {
	t.Parallel()
	d := runfiles.Dir(t.TempDir())
	must(t, d.KeepNote("run_1", "note"))
	must(t, runfiles.WriteWhole(d.Made("run_1"), func(io.Writer) error {
		return d.RemoveBegun("run_1", time.Now().Add(-time.Hour))
	}))
	for id, want := range map[string][]string{"*": {"run_1"}, "run_[1]": {"run_1"}, "../run_1": {"run_1"}, "x/run_1": {"run_1"}, "run_1": nil} {
		must(t, errors.Join(d.KeepNote("run_1", "note"), os.WriteFile(d.Of("run_1", "note-1"), nil, 0o600))) // unfinished
		must(t, d.RemoveBegun(id, time.Now()))
		ids, err := d.Begun()
		left, err2 := os.ReadDir(d.Of("run_1"))
		must(t, errors.Join(err, err2))
		if !cmp.Equal(ids, want, cmpopts.EquateEmpty()) || len(left) != 1+2*len(want) { // made.zip stays
			t.Errorf("behind %s: %v, %v", id, ids, left)
		}
	}
}
