package cache

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// The conformance suite in e2e/conformance tests on every engine how sandboxes fill and read caches. The tests here
// need no engine.

var must = checktest.Must

func TestOpen(t *testing.T) {
	t.Parallel()
	for _, own := range [][]Volume{
		{Own("", "A")}, {Own("../x", "A")}, {Own("A", "A")}, {Own("x.", "A")}, {Own(strings.Repeat("x", 33), "A")}, {Own("x", "")},
		{Own("x", "A=B")}, {Own("x", "A B")}, {Own("pip", "A")}, {Own("x", "A"), Own("x", "B")},
	} {
		if _, err := Open(t.TempDir(), own...); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%v: %v", own, err)
		}
	}
	s, err := Open(filepath.Join(t.TempDir(), "none"))
	must(t, err)
	if list, err := s.List(); err != nil || len(list) != 3 {
		t.Errorf("%+v, %v", list, err)
	}
	if left, err := s.Leftovers(); err != nil || left != nil {
		t.Errorf("%+v, %v", left, err)
	}
	for _, name := range []string{"nope", "", "..", "pip/.."} {
		if err := s.Remove(name); !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestLeftovers verifies that a replaced directory is kept for a day. An unfinished directory is a leftover at once if
// its process is dead, but not if its process is alive.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s, err := Open(dir)
	must(t, err)
	names := func() (list []string) {
		left, err := s.Leftovers()
		must(t, err)
		for _, l := range left {
			list = append(list, l.Cache+"/"+l.Name[:3])
		}
		return list
	}
	must(t, s.Remove("pip"))
	must(t, s.Remove("pip"))
	if got := names(); got != nil {
		t.Errorf("replaced just now: %v", got)
	}
	old, err := filepath.Glob(filepath.Join(dir, "pip", oldPrefix+"*"))
	if err != nil || len(old) != 1 {
		t.Fatalf("%v, %v", old, err)
	}
	past := time.Now().Add(-25 * time.Hour)
	must(t, os.Chtimes(old[0], past, past))
	must(t, os.Chtimes(s.files("pip"), past, past))
	unlock, err := s.lock("npm")
	must(t, err)
	_, err = s.begin("npm")
	must(t, err)
	if got := strings.Join(names(), " "); got != "pip/old" {
		t.Errorf("while a process fills the cache: %v", got)
	}
	if err := s.Remove("npm"); !errors.Is(err, backend.ErrExists) {
		t.Errorf("while another fills it: %v", err)
	}
	unlock()
	if got := strings.Join(names(), " "); got != "npm/new pip/old" {
		t.Errorf("after the process has ended: %v", got)
	}
	left, err := s.Leftovers()
	must(t, err)
	for _, l := range left {
		must(t, s.RemoveLeftover(l))
	}
	_, err = s.begin("pip")
	must(t, err)
	must(t, s.Remove("pip")) // also removes the leftovers
	if st, err := os.Stat(s.files("pip")); names() != nil || err != nil || !st.IsDir() {
		t.Errorf("left: %v; %v", names(), err)
	}
}

// archive returns an archive of entries with the same contents.
func archive(t testing.TB, list ...tar.Header) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range list {
		if h.Typeflag == tar.TypeReg {
			h.Size = 4
		}
		must(t, w.WriteHeader(&h))
		if h.Size > 0 {
			_, err := w.Write([]byte("text"))
			must(t, err)
		}
	}
	must(t, w.Close())
	return b.Bytes()
}

const maxFiles = 8

// extracted extracts an archive and returns the resulting files. It verifies that no file is outside the directory.
func extracted(t testing.TB, data []byte, most int64) (names []string, err error) {
	t.Helper()
	outer := t.TempDir()
	dir := filepath.Join(outer, "in")
	must(t, os.Mkdir(dir, 0o755))
	root, err := os.OpenRoot(dir)
	must(t, err)
	defer root.Close()
	err = extract(root, bytes.NewReader(data), most, maxFiles)
	var bytes int64
	var files []fs.FileInfo
	must(t, filepath.WalkDir(outer, func(path string, d fs.DirEntry, err error) error {
		must(t, err)
		info, err := d.Info()
		must(t, err)
		if path == outer || path == dir {
			return nil
		}
		below, inside := strings.CutPrefix(path, dir+"/")
		if !inside || !d.IsDir() && !d.Type().IsRegular() || info.Mode()&(fs.ModeSetuid|fs.ModeSetgid|0o022) != 0 {
			t.Errorf("%s is %v", path, info.Mode())
		}
		if d.Type().IsRegular() && !slices.ContainsFunc(files, func(f fs.FileInfo) bool { return os.SameFile(f, info) }) {
			files = append(files, info)
			bytes += info.Size()
		}
		names = append(names, below)
		return nil
	}))
	if bytes > most {
		t.Errorf("%d bytes, at most %d may be", bytes, most)
	}
	return names, err
}

func TestExtract(t *testing.T) {
	t.Parallel()
	const sym = tar.TypeSymlink
	file := func(name string) tar.Header { return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o4777} }
	link := func(kind byte, name, to string) tar.Header {
		return tar.Header{Name: name, Typeflag: kind, Linkname: to, Mode: 0o777}
	}
	for name, tc := range map[string]struct {
		list []tar.Header
		want string
		ok   bool
	}{
		"plain":           {[]tar.Header{{Name: "./", Typeflag: tar.TypeDir}, file("./a/b"), {Name: "c", Typeflag: tar.TypeDir}}, "a a/b c", true},
		"up":              {[]tar.Header{file("a"), file("../b")}, "a", false},
		"absolute":        {[]tar.Header{file("/b")}, "", false},
		"through":         {[]tar.Header{link(sym, "l", "/"), file("l/b")}, "l l/b", true}, // a new directory
		"symlink":         {[]tar.Header{link(sym, "l", "s/../s/a"), file("s/a")}, "l s s/a", true},
		"symlink out":     {[]tar.Header{file("a"), link(sym, "l", "../a")}, "a", true},
		"symlink to /":    {[]tar.Header{file("d/a"), link(sym, "l", "/d/a")}, "d d/a", true},
		"symlink chain":   {[]tar.Header{link(sym, "l", "m"), link(sym, "m", "a"), file("a")}, "a l m", true},
		"symlink loop":    {[]tar.Header{link(sym, "l", "m"), link(sym, "m", "l")}, "", true},
		"hard link":       {[]tar.Header{file("a"), link(tar.TypeLink, "b", "a")}, "a b", true},
		"hard link out":   {[]tar.Header{link(tar.TypeLink, "b", "../../../../../etc/passwd")}, "", false},
		"hard link up":    {[]tar.Header{link(tar.TypeLink, "../b", "a")}, "", false},
		"hard link to no": {[]tar.Header{link(tar.TypeLink, "b", "a")}, "", false},
		"special":         {[]tar.Header{link(tar.TypeFifo, "f", ""), link(tar.TypeChar, "c", ""), link(sym, "s", "x")}, "", true},
		"twice":           {[]tar.Header{file("a"), file("a")}, "a", false},
		"too deep":        {[]tar.Header{file("a"), file("b/c/d/e/f/g/h/i")}, "a", false},
		"deep":            {[]tar.Header{{Name: "b", Typeflag: tar.TypeDir}, {Name: "b/c", Typeflag: tar.TypeDir}, file("b/c/d/e"), file("b/c/d/f")}, "b b/c b/c/d b/c/d/e b/c/d/f", true},
		"too long":        {[]tar.Header{file(strings.Repeat("d/", 2048) + "f")}, "", false},
		"too large":       {[]tar.Header{file("a"), file("b"), file("c")}, "a b", false},
	} {
		names, err := extracted(t, archive(t, tc.list...), 10)
		if got := strings.Join(names, " "); got != tc.want || (err == nil) != tc.ok {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	if _, err := extracted(t, archive(t, file("a"))[:514], 10); err == nil {
		t.Error("cut off: no error")
	}
}

// FuzzExtract verifies that an archive cannot write outside its directory or exceed its maximum size.
func FuzzExtract(f *testing.F) {
	f.Add(archive(f, tar.Header{Name: "a/b", Typeflag: tar.TypeReg, Mode: 0o644}, tar.Header{Name: "c", Typeflag: tar.TypeLink, Linkname: "a/b"}))
	f.Add(archive(f, tar.Header{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/"}, tar.Header{Name: "l/../../x", Typeflag: tar.TypeReg, Mode: 0o644}))
	f.Fuzz(func(t *testing.T, data []byte) { _, _ = extracted(t, data, 1<<10) })
}
