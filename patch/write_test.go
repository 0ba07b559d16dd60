package patch

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestWrite: a changed file is only replaced with force, and nothing outside is written.
func TestWrite(t *testing.T) {
	t.Parallel()
	dir := put(t, Tree{"same": file("new\n"), "mine": file("mine\n"), "meanwhile": file("old\n"), "as it was": file("old\n"), "d/link": link("../as it was")})
	before := Stamp(dir, []string{"meanwhile", "as it was", "absent"})
	must(t, os.WriteFile(filepath.Join(dir, "meanwhile"), []byte("newer\n"), 0o644))
	made := Tree{
		"same": file("new\n"), "mine": file("new\n"), "meanwhile": file("new\n"), "as it was": file("new\n"), "a/b/new": script("new\n"),
		"d/link": file("new\n"), "d/link/x": file("new\n"), ".git/hooks/pre-commit": script("evil"), "../out": file("evil"), "up": link("../../etc"),
	}
	check := func(force bool, conflicts int, want Tree) {
		t.Helper()
		r, err := made.Write(dir, before, force)
		if err != nil || len(r.Conflicts) != conflicts || len(r.Applied)+len(r.Unchanged)+conflicts != len(made) {
			t.Errorf("force %v: %+v, %v", force, r, err)
		}
		if got := get(t, dir); !same(got, want) {
			t.Errorf("force %v: the directory has %q, want %q", force, got, want)
		}
	}
	want := Tree{"same": file("new\n"), "mine": file("mine\n"), "meanwhile": file("newer\n"), "as it was": file("new\n"), "a/b/new": script("new\n"), "d/link": link("../as it was")}
	check(false, 7, want)
	want["mine"], want["meanwhile"], want["d/link"] = file("new\n"), file("new\n"), file("new\n")
	check(true, 4, want)
	if _, err := os.Lstat(filepath.Join(filepath.Dir(dir), "out")); err == nil {
		t.Error("a file outside of the directory was written")
	}
}

// TestWriteThroughLink: no file is written if the path contains a link.
func TestWriteThroughLink(t *testing.T) {
	t.Parallel()
	dir := put(t, Tree{"victim/f": file("x"), "link": link("victim")})
	for _, to := range []string{"link", "link/new"} {
		if r, err := (Tree{"key": file("evil")}).Write(filepath.Join(dir, to), nil, true); err == nil {
			t.Errorf("%s: %+v", to, r)
		}
	}
	if got := get(t, filepath.Join(dir, "victim")); len(got) != 1 {
		t.Errorf("the directory has %q", got)
	}
}

// TestStamp: a replaced file with the same size is detected.
func TestStamp(t *testing.T) {
	t.Parallel()
	dir := put(t, Tree{"a": file("old")})
	at := filepath.Join(dir, "a")
	before := Stamp(dir, []string{"a"})
	must(t, os.WriteFile(at+".new", []byte("mny"), 0o644))
	must(t, os.Chtimes(at+".new", time.Time{}, before["a"].ModTime()))
	must(t, os.Rename(at+".new", at))
	if r, err := (Tree{"a": file("new")}).Write(dir, before, false); err != nil || len(r.Conflicts) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}
