//go:build linux

package client_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/guesttest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

func put(t testing.TB, c *client.Conn, path string, data []byte) (wire.FileInfo, error) {
	t.Helper()
	return c.PutFile(testContext(t), wire.FilePutRequest{Path: path, Size: int64(len(data)), Overwrite: true}, bytes.NewReader(data))
}

func mustPut(t testing.TB, c *client.Conn, path string, data []byte) {
	t.Helper()
	_, err := put(t, c, path, data)
	must(t, err)
}

func get(t testing.TB, c *client.Conn, path string) ([]byte, error) {
	t.Helper()
	var b bytes.Buffer
	_, err := c.GetFile(testContext(t), wire.FileGetRequest{Path: path, Length: -1}, &b)
	return b.Bytes(), err
}

// TestLeasedFile verifies that the error for a file on which a process has a lease contains the reason.
func TestLeasedFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := dial(t, guesttest.Start(t, &guesttest.Options{Binary: binary, Workdir: dir}))
	mustPut(t, c, "f", []byte("x"))
	f, err := os.OpenFile(filepath.Join(dir, "f"), os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	signal.Ignore(unix.SIGIO)
	eventually(t, "a lease", func() bool { // another test's child process, before the exec, has the file open, too
		_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
		return err == nil
	})
	const text = "a process has a lease on the file"
	if _, err := get(t, c, "f"); codeOf(err) != wire.CodeBusy || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v", err)
	}
}

func TestPartOfAFile(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	data := noise(200_000)
	mustPut(t, c, "f", data)
	for _, tc := range []struct{ offset, length, want int64 }{
		{0, 0, 0}, {0, 10, 10}, {100, -1, 199_900}, {199_999, 10, 1}, {200_000, -1, 0}, {500_000, 10, 0}, {50_000, 100_000, 100_000},
	} {
		var b bytes.Buffer
		info, err := c.GetFile(testContext(t), wire.FileGetRequest{Path: "f", Offset: tc.offset, Length: tc.length}, &b)
		if err != nil || info.Size != 200_000 || int64(b.Len()) != tc.want || tc.want > 0 && !bytes.Equal(b.Bytes(), data[tc.offset:tc.offset+tc.want]) {
			t.Errorf("%+v: %d bytes, %+v, %v", tc, b.Len(), info, err)
		}
	}
	fails(t, "negative offset",
		second(c.GetFile(testContext(t), wire.FileGetRequest{Path: "f", Offset: -1, Length: 1}, io.Discard)), wire.CodeInvalid)
}

// TestReplace verifies that a file is not replaced if the host has not seen the current content.
func TestReplace(t *testing.T) {
	t.Parallel()
	g, c := start(t)
	at := filepath.Join(g.Workdir, "d", "f")
	if err := errors.Join(os.Mkdir(filepath.Join(g.Workdir, "d"), 0o755), os.WriteFile(at, []byte("one"), 0o600), os.Chmod(at, 0o751),
		os.Symlink("d/f", filepath.Join(g.Workdir, "near")), os.Symlink(at, filepath.Join(g.Workdir, "far")),
		os.Symlink("/etc/hostname", filepath.Join(g.Workdir, "out"))); err != nil {
		t.Fatal(err)
	}
	replace := func(name, was, with string) error {
		sum := sha256.Sum256([]byte(was))
		_, err := c.PutFile(testContext(t), wire.FilePutRequest{Path: name, Was: sum[:], Size: int64(len(with))}, strings.NewReader(with))
		return err
	}
	holds := func(want string) {
		t.Helper()
		b, err := os.ReadFile(at)
		st, statErr := os.Stat(at)
		if err != nil || statErr != nil || string(b) != want || st.Mode() != 0o751 {
			t.Errorf("%q with mode %v, want %q with 0751: %v, %v", b, st.Mode(), want, err, statErr)
		}
	}
	for _, name := range []string{"d/f", "near", "far"} {
		if err := replace(name, "one", "two, which is longer"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		holds("two, which is longer")
		fails(t, name+", of which the host has another version", replace(name, "one", "three"), wire.CodeChanged)
		holds("two, which is longer")
		if err := replace(name, "two, which is longer", "one"); err != nil {
			t.Error(err)
		}
	}
	fails(t, "a link that leads out", replace("out", "x", "y"), wire.CodePermission)
	for name, code := range map[string]wire.Code{"none": wire.CodeChanged, "none/f": wire.CodeNotFound} {
		fails(t, name, replace(name, "", "y"), code)
	}
	fails(t, "a directory", replace("d", "", "y"), wire.CodeInvalid)
	fails(t, "an invalid sum",
		second(c.PutFile(testContext(t), wire.FilePutRequest{Path: "d/f", Was: []byte("short"), Size: 0}, strings.NewReader(""))), wire.CodeInvalid)
	list, err := os.ReadDir(filepath.Join(g.Workdir, "d"))
	if err != nil || len(list) != 1 {
		t.Errorf("the directory contains %v, %v", list, err)
	}
	if _, err := os.Stat(filepath.Join(g.Workdir, "none")); err == nil {
		t.Error("a file was made")
	}
}

// TestPutOverAFile verifies that rewriting a file keeps the mode, and a file without write permission is not changed.
func TestPutOverAFile(t *testing.T) {
	t.Parallel()
	g, c := start(t)
	at := filepath.Join(g.Workdir, "f")
	for _, mode := range []os.FileMode{0o755, 0o600, 0o4777, 0o444, 0o200} {
		must(t, errors.Join(os.WriteFile(at, []byte("old"), 0o600), os.Chmod(at, mode.Perm())))
		info, err := put(t, c, "f", []byte("new"))
		st, statErr := os.Stat(at)
		switch {
		case statErr != nil || st.Mode() != mode.Perm():
			t.Errorf("mode %v became %v, %v", mode, st.Mode(), statErr)
		case mode == 0o444 && os.Getuid() != 0:
			if b, _ := os.ReadFile(at); codeOf(err) != wire.CodePermission || string(b) != "old" {
				t.Errorf("a file that may not be written: %q, %v", b, err)
			}
		case err != nil || os.FileMode(info.Mode) != mode.Perm() || st.Size() != 3:
			t.Errorf("mode %v: %+v, %v", mode, info, err)
		}
		_ = os.Remove(at)
	}
	req := wire.FilePutRequest{Path: "f", Size: 1, Mode: 0o640}
	for _, req.Overwrite = range []bool{false, true} {
		if info, err := c.PutFile(testContext(t), req, strings.NewReader("x")); err != nil || info.Mode != req.Mode {
			t.Errorf("%+v: %+v, %v", req, info, err)
		}
		req.Mode = 0o600
	}
	// The error is returned before the contents are sent.
	req = wire.FilePutRequest{Path: "f", Size: -1}
	fails(t, "existing", second(c.PutFile(testContext(t), req, endless{})), wire.CodeExists)
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

func TestReadersSeeWholeVersions(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	versions := [][]byte{bytes.Repeat([]byte("a"), 150_000), bytes.Repeat([]byte("b"), 80_000)}
	mustPut(t, c, "f", versions[0])
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for _, v := range versions {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := put(t, c, "f", v); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 300 {
		b, err := get(t, c, "f")
		if err != nil || !bytes.Equal(b, versions[0]) && !bytes.Equal(b, versions[1]) {
			t.Errorf("%d bytes, %v", len(b), err)
		}
	}
	close(stop)
	wg.Wait()
	if l, err := c.List(testContext(t), wire.ListRequest{Path: "."}); err != nil || len(l.Entries) != 1 {
		t.Errorf("left over: %+v, %v", l, err)
	}
}

func TestMissing(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	all := ops(t, c)
	for _, name := range []string{"get", "list", "stat", "remove", "from", "to"} {
		fails(t, name+" of a missing file", all[name]("no/such/thing"), wire.CodeNotFound)
	}
}

func TestMkdirRenameRemove(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	ctx := testContext(t)
	info, err := c.Mkdir(ctx, wire.PathRequest{Path: "a/b/c", Mode: 0o700})
	if err != nil || info.Type != wire.TypeDir || info.Path != "a/b/c" || info.Mode != 0o700 {
		t.Fatalf("Mkdir: %+v, %v", info, err)
	}
	if _, err := c.Mkdir(ctx, wire.PathRequest{Path: "a/b/c"}); err != nil {
		t.Errorf("Mkdir again: %v", err)
	}
	for _, p := range []string{"a/f", "a/b/g", "a/b/c/h"} {
		mustPut(t, c, p, []byte(p))
	}
	if _, err := c.Mkdir(ctx, wire.PathRequest{Path: "a/f"}); err == nil {
		t.Error("Mkdir over a file succeeded")
	}
	fails(t, "Rename onto a file", c.Rename(ctx, wire.RenameRequest{From: "a/f", To: "a/b/g"}), wire.CodeExists)
	if err := c.Rename(ctx, wire.RenameRequest{From: "a/f", To: "a/b/g", Overwrite: true}); err != nil {
		t.Errorf("Rename onto a file: %v", err)
	}
	fails(t, "Rename into itself", c.Rename(ctx, wire.RenameRequest{From: "a", To: "a/b/inside"}), wire.CodeInvalid)
	if err := c.Rename(ctx, wire.RenameRequest{From: "a", To: "z"}); err != nil {
		t.Errorf("Rename: %v", err)
	}
	if b, err := get(t, c, "z/b/g"); err != nil || string(b) != "a/f" {
		t.Errorf("got %q, %v", b, err)
	}
	for _, name := range []string{"get", "put"} {
		fails(t, name+" of a directory", ops(t, c)[name]("z"), wire.CodeInvalid)
	}
	fails(t, "Remove of a directory", second(c.Remove(ctx, wire.PathRequest{Path: "z"})), wire.CodeInvalid)
	if res, err := c.Remove(ctx, wire.PathRequest{Path: "z", Recursive: true}); err != nil || res.Deleted != 5 {
		t.Errorf("Remove: %v, %v", brief(res), err)
	}
}

func TestListIsSortedAndBounded(t *testing.T) {
	t.Parallel()
	g, c := start(t)
	ctx := testContext(t)
	for _, p := range []string{"b/2", "b/1", "a.txt", "a/x", "c", "a-b"} {
		mustPut(t, c, p, []byte(p))
	}
	names := func(req wire.ListRequest) (out []string, res wire.ListResult) {
		res, err := c.List(ctx, req)
		must(t, err)
		for _, e := range res.Entries {
			out = append(out, e.Path)
		}
		return out, res
	}
	got, _ := names(wire.ListRequest{Path: ".", Recursive: true})
	if diff := cmp.Diff([]string{"a", "a/x", "a-b", "a.txt", "b", "b/1", "b/2", "c"}, got); diff != "" {
		t.Errorf("recursive (-want +got):\n%s", diff)
	}
	got, _ = names(wire.ListRequest{Path: "b"})
	if diff := cmp.Diff([]string{"b/1", "b/2"}, got); diff != "" {
		t.Errorf("of b (-want +got):\n%s", diff)
	}
	got, res := names(wire.ListRequest{Path: ".", Recursive: true, Limit: 3})
	if diff := cmp.Diff([]string{"a", "a/x", "a-b"}, got); diff != "" || res.Total != 8 || !res.Truncated {
		t.Errorf("first three: %+v (-want +got):\n%s", res, diff)
	}
	big := filepath.Join(g.Workdir, "big")
	must(t, os.Mkdir(big, 0o755))
	for i := range 30_000 {
		must(t, os.Symlink("x", filepath.Join(big, fmt.Sprintf("%06d", i))))
	}
	got, res = names(wire.ListRequest{Path: "big"})
	if len(got) != 1000 || got[0] != "big/000000" || got[999] != "big/000999" || res.Total != 30_000 || !res.Truncated {
		t.Errorf("%d entries, total %d, truncated %v", len(got), res.Total, res.Truncated)
	}
	got, res = names(wire.ListRequest{Path: ".", Recursive: true, Limit: 1 << 30})
	if len(got) != wire.MaxListEntries || !res.Truncated || res.Total != 30_009 {
		t.Errorf("%d entries, total %d, truncated %v", len(got), res.Total, res.Truncated)
	}
	fails(t, "list of a file", second(c.List(ctx, wire.ListRequest{Path: "c"})), wire.CodeInvalid)
	if res, err := c.Remove(ctx, wire.PathRequest{Path: "big", Recursive: true}); err != nil || res.Deleted != 30_001 {
		t.Errorf("Remove: %v, %v", brief(res), err)
	}
}

// TestDeepTree verifies that a listing stops at the maximum depth and is marked as truncated.
func TestDeepTree(t *testing.T) {
	t.Parallel()
	g, c := start(t)
	const depth, listed = 1000, 129
	deepTree(t, g.Workdir, depth)
	mustPut(t, c, "e/file", nil) // listed after the return to the top level
	res, err := c.List(testContext(t), wire.ListRequest{Path: ".", Recursive: true, Limit: 5000})
	if err != nil || res.Total != listed+2 || len(res.Entries) != listed+2 || !res.Truncated {
		t.Fatalf("%d entries, total %d, truncated %v, %v", len(res.Entries), res.Total, res.Truncated, err)
	}
	got := []string{res.Entries[listed-1].Path, res.Entries[listed].Path, res.Entries[listed+1].Path}
	if diff := cmp.Diff([]string{strings.Repeat("d/", listed-1) + "d", "e", "e/file"}, got); diff != "" {
		t.Errorf("the last entries (-want +got):\n%s", diff)
	}
	del, err := c.Remove(testContext(t), wire.PathRequest{Path: "d", Recursive: true})
	if err != nil || del.Deleted != depth {
		t.Errorf("remove: %+v, %v", del, err)
	}
}

// deepTree creates nested directories.
func deepTree(t testing.TB, dir string, depth int) {
	at, err := unix.Open(dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	for n := 0; n < depth && err == nil; n++ {
		above := at
		if err = unix.Mkdirat(above, "d", 0o755); err == nil {
			at, err = unix.Openat(above, "d", unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		}
		_ = unix.Close(above)
	}
	must(t, err)
	_ = unix.Close(at)
}

func TestSparseAndGrowingFiles(t *testing.T) {
	t.Parallel()
	g, c := start(t)
	must(t, os.WriteFile(filepath.Join(g.Workdir, "sparse"), nil, 0o644))
	must(t, os.Truncate(filepath.Join(g.Workdir, "sparse"), 1<<40))
	var n counter
	info, err := c.GetFile(testContext(t), wire.FileGetRequest{Path: "sparse", Length: 1 << 20}, &n)
	if err != nil || n != 1<<20 || info.Size != 1<<40 {
		t.Errorf("%d bytes, %+v, %v", n, info, err)
	}
	req := sh("while :; do head -c 10000 /dev/zero; sleep 0.01; done > growing")
	req.YieldMillis = 200
	mustRun(t, c, req)
	eventually(t, "the file exists", func() bool { _, err := c.Stat(testContext(t), wire.PathRequest{Path: "growing"}); return err == nil })
	for range 5 {
		n = 0
		info, err = c.GetFile(testContext(t), wire.FileGetRequest{Path: "growing", Length: -1}, &n)
		if err != nil || int64(n) != info.Size {
			t.Errorf("%d bytes of %+v, %v", n, info, err)
		}
	}
	kill(t, c, req.ExecID)
}
