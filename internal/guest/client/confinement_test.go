//go:build linux

package client_test

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/guesttest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// ops returns functions for all requests with a path. Each function returns the error of the request.
func ops(t testing.TB, c *client.Conn) map[string]func(string) error {
	ctx := testContext(t)
	return map[string]func(string) error{
		"get": func(p string) error {
			_, err := c.GetFile(ctx, wire.FileGetRequest{Path: p, Length: -1}, io.Discard)
			return err
		},
		"put": func(p string) error {
			_, err := c.PutFile(ctx, wire.FilePutRequest{Path: p, Size: 1, Overwrite: true}, strings.NewReader("x"))
			return err
		},
		"list":   func(p string) error { _, err := c.List(ctx, wire.ListRequest{Path: p}); return err },
		"stat":   func(p string) error { _, err := c.Stat(ctx, wire.PathRequest{Path: p}); return err },
		"mkdir":  func(p string) error { _, err := c.Mkdir(ctx, wire.PathRequest{Path: p}); return err },
		"remove": func(p string) error { _, err := c.Remove(ctx, wire.PathRequest{Path: p, Recursive: true}); return err },
		"from":   func(p string) error { return c.Rename(ctx, wire.RenameRequest{From: p, To: "moved", Overwrite: true}) },
		"to":     func(p string) error { return c.Rename(ctx, wire.RenameRequest{From: "src", To: p, Overwrite: true}) },
	}
}

// canaryDir returns a directory outside of the workspace. It must not change.
func canaryDir(t testing.TB) string {
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "canary"), []byte("alive"), 0o644))
	return dir
}

func checkCanary(t testing.TB, dir string) {
	t.Helper()
	l, err := os.ReadDir(dir)
	b, rerr := os.ReadFile(filepath.Join(dir, "canary"))
	if err != nil || rerr != nil || len(l) != 1 || string(b) != "alive" {
		t.Errorf("the outside changed: %v, %q, %v, %v", l, b, err, rerr)
	}
}

// TestSymlinksInside verifies that relative links and links to absolute paths are followed inside the workspace, and
// never lead outside.
func TestSymlinksInside(t *testing.T) {
	t.Parallel()
	g, c := start(t)
	canary := canaryDir(t)
	at := func(name string) string { return filepath.Join(g.Workdir, name) }
	mustPut(t, c, "data/sub/file", []byte("inside"))
	for name, to := range map[string]string{
		"link": "data/sub/file", "dirlink": "data/sub", "a": "b", "b": "a", "nowhere": "nothing",
		"current": at("data"), "file": at("data/sub/file"), "self": g.Workdir, "twice": at("current/sub"), "mixed": "current/sub/../sub",
		"data/up": at("self"), "dangling": at("nothing"), "far": at("out/canary"), "out": canary, "gone": filepath.Join(canary, "nothing"),
		"past": g.Workdir + "/.." + canary, "loop": at("loop"), "magic": "/proc/self/cwd", "fd": "/proc/self/fd",
	} {
		must(t, os.Symlink(to, at(name)))
	}
	for p, want := range map[string]wire.Code{ // "" if the file inside is read
		"link": "", "dirlink/file": "", "current/sub/file": "", "file": "", "self/data/sub/file": "", "twice/file": "", "mixed/file": "",
		"data/up/twice/file": "", at("current/sub/file"): "",
		"nowhere": wire.CodeNotFound, "dangling": wire.CodeNotFound, "current/none": wire.CodeNotFound,
		"a": wire.CodeInvalid, "a/x": wire.CodeInvalid, "loop": wire.CodeInvalid,
		"far": wire.CodePermission, "out/canary": wire.CodePermission, "gone": wire.CodePermission, "self/out/canary": wire.CodePermission,
		"past/canary": wire.CodePermission, "magic": wire.CodePermission, "magic/x": wire.CodePermission, "fd/0": wire.CodePermission,
	} {
		if b, err := get(t, c, p); codeOf(err) != want || want == "" && (err != nil || string(b) != "inside") {
			t.Errorf("get %s: %q, %v", p, b, err)
		}
	}
	for _, p := range []string{"gone/x", "out/x", "far/x", "past/x"} {
		fails(t, "put "+p, second(put(t, c, p, nil)), wire.CodePermission)
	}
	if _, err := put(t, c, "current/new/below", []byte("new")); err != nil {
		t.Errorf("put: %v", err)
	}
	if info, err := c.Mkdir(testContext(t), wire.PathRequest{Path: "twice/made/deep"}); err != nil || info.Path != "twice/made/deep" {
		t.Errorf("mkdir: %+v, %v", info, err)
	}
	if err := c.Rename(testContext(t), wire.RenameRequest{From: "current/new/below", To: "twice/made/moved"}); err != nil {
		t.Errorf("rename: %v", err)
	}
	if b, err := os.ReadFile(at("data/sub/made/moved")); err != nil || string(b) != "new" {
		t.Errorf("%q, %v", b, err)
	}
	l, err := c.List(testContext(t), wire.ListRequest{Path: "current", Recursive: true})
	if err != nil || len(l.Entries) != 7 || l.Entries[0].Path != "current/new" {
		t.Errorf("list: %+v, %v", l, err)
	}
	// A write replaces a link. Stat and Remove apply to the link itself, and the link's target stays.
	mustPut(t, c, "link", []byte("new"))
	if info, err := c.Stat(testContext(t), wire.PathRequest{Path: "dirlink"}); err != nil || info.Type != wire.TypeSymlink {
		t.Errorf("stat of a link: %+v, %v", info, err)
	}
	for _, p := range []string{"dirlink", "current/new"} {
		if res, err := c.Remove(testContext(t), wire.PathRequest{Path: p, Recursive: true}); err != nil || res.Deleted != 1 {
			t.Errorf("remove %s: %+v, %v", p, res, err)
		}
	}
	if b, err := get(t, c, "data/sub/file"); err != nil || string(b) != "inside" {
		t.Errorf("the target became %q, %v", b, err)
	}
	checkCanary(t, canary)
}

// TestScratch verifies that a second root has the same rules as the first, and no path leads from one root to the
// other.
func TestScratch(t *testing.T) {
	t.Parallel()
	scratch := t.TempDir()
	g := guesttest.Start(t, &guesttest.Options{Binary: binary, Scratch: scratch})
	c := dial(t, g)
	canary := canaryDir(t)
	at := func(name string) string { return filepath.Join(scratch, name) }
	info, err := put(t, c, at("dir/file"), []byte("scratch"))
	if err != nil || info.Path != at("dir/file") {
		t.Fatalf("put: %+v, %v", info, err)
	}
	for name, to := range map[string]string{at("current"): at("dir"), at("out"): canary, at("work"): g.Workdir, filepath.Join(g.Workdir, "tmp"): scratch} {
		must(t, os.Symlink(to, name))
	}
	if b, err := get(t, c, at("current/file")); err != nil || string(b) != "scratch" {
		t.Errorf("get: %q, %v", b, err)
	}
	mustPut(t, c, "src", nil)
	for name, op := range ops(t, c) {
		for _, p := range []string{at("out/canary"), at("../x"), scratch + "-evil/x", canary, at("work/x"), "tmp/x"} {
			fails(t, name+" "+p, op(p), wire.CodePermission)
		}
	}
	l, err := c.List(testContext(t), wire.ListRequest{Path: scratch, Recursive: true})
	var names []string
	for _, e := range l.Entries {
		names = append(names, e.Path)
	}
	if want := []string{at("current"), at("dir"), at("dir/file"), at("out"), at("work")}; err != nil || !slices.Equal(names, want) {
		t.Errorf("list: %q, %v", names, err)
	}
	if st, err := c.Stat(testContext(t), wire.PathRequest{Path: scratch}); err != nil || st.Path != scratch || st.Type != wire.TypeDir {
		t.Errorf("stat: %+v, %v", st, err)
	}
	fails(t, "remove of the root",
		second(c.Remove(testContext(t), wire.PathRequest{Path: scratch, Recursive: true})), wire.CodeInvalid)
	if res, err := c.Remove(testContext(t), wire.PathRequest{Path: at("dir"), Recursive: true}); err != nil || res.Deleted != 2 {
		t.Errorf("remove: %+v, %v", res, err)
	}
	checkCanary(t, canary)
}
