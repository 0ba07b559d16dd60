package transfer

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
)

// memory is a destination that stores files in memory.
type memory struct {
	mu    sync.Mutex // guards files
	files map[string]string
}

func (m *memory) WriteFile(_ context.Context, name string, r io.Reader, opts sandbox.WriteFileOptions) (sandbox.FileInfo, error) {
	data, err := io.ReadAll(r)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[name] = opts.Mode.String() + " " + string(data)
	return sandbox.FileInfo{}, err
}

func (m *memory) MakeDir(_ context.Context, name string, mode fs.FileMode) (sandbox.FileInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.files[name+"/"] = mode.String()
	return sandbox.FileInfo{}, nil
}

func write(t *testing.T, dir, name, content string, mode fs.FileMode) {
	t.Helper()
	path := filepath.Join(dir, name)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(content), mode))
	if err := os.Chmod(path, mode); err != nil { // independent of the umask
		t.Fatal(err)
	}
}

func TestWorkspaceCopiesFilesOnly(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Log("modes and links below are those of Unix")
		return
	}
	outside := t.TempDir()
	write(t, outside, "secret", "secret", 0o600)
	dir := t.TempDir()
	write(t, dir, "main.py", "print(1)\n", 0o664)
	write(t, dir, "bin/run", "#!/bin/sh\n", 0o777)
	write(t, dir, "private", "x", 0o400)
	write(t, dir, "empty.txt", "", 0o644)
	write(t, dir, ".git/config", "[core]", 0o644)
	write(t, dir, "vendor/.git/config", "[core]", 0o644)
	write(t, dir, "bin/.git", "gitdir: ../.git/modules/bin", 0o644) // from a submodule
	write(t, dir, ".workcell/output/x", "x", 0o644)
	must(t, os.Mkdir(filepath.Join(dir, "hollow"), 0o555))
	for link, target := range map[string]string{
		"link": filepath.Join(outside, "secret"), "dirlink": outside, "bin/loop": "..", "dangling": "nowhere",
	} {
		must(t, os.Symlink(target, filepath.Join(dir, link)))
	}

	dst := &memory{files: map[string]string{}}
	snapshot, err := NewSnapshot(t.Context(), Place{Dir: dir}, filepath.Join(t.TempDir(), "run", "base.zip"))
	must(t, err)
	must(t, snapshot.copyTo(t.Context(), dst))
	want := map[string]string{
		"bin/": "-rwxr-xr-x", "vendor/": "-rwxr-xr-x", "hollow/": "-rwxr-xr-x",
		"main.py":   "-rw-r--r-- print(1)\n",
		"bin/run":   "-rwxr-xr-x #!/bin/sh\n",
		"private":   "-rw------- x",
		"empty.txt": "-rw-r--r-- ",
	}
	if diff := cmp.Diff(want, dst.files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	skipped, err := CheckWorkspace(t.Context(), Place{Dir: dir})
	if diff := cmp.Diff([]string{"bin/loop", "dangling", "dirlink", "link"}, skipped); err != nil || diff != "" {
		t.Errorf("skipped, %v (-want +got):\n%s", err, diff)
	}
}

func TestWorkspaceRefusesTooMuchBeforeItCopies(t *testing.T) {
	t.Parallel()
	files, bytes := t.TempDir(), t.TempDir()
	write(t, files, "a", "", 0o644)
	for i := range maxWorkspaceFiles {
		must(t, os.Link(filepath.Join(files, "a"), filepath.Join(files, strconv.Itoa(i))))
	}
	write(t, bytes, "a", "", 0o644)
	must(t, os.Truncate(filepath.Join(bytes, "a"), maxWorkspaceBytes))
	write(t, bytes, "b", "x", 0o644)
	for name, dir := range map[string]string{"files": files, "bytes": bytes} {
		snapshot := &Snapshot{at: Place{Dir: dir}, file: filepath.Join(t.TempDir(), "base.zip")}
		if err := snapshot.Take(t.Context()); !errors.Is(err, backend.ErrTooLarge) {
			t.Errorf("%s: error = %v, want too large", name, err)
		}
		if _, err := os.Stat(snapshot.file); err == nil {
			t.Errorf("%s: there is a snapshot", name)
		}
	}
}

// TestSnapshotStaysAsItWas verifies that all sandboxes of a run begin with the same files, even in a later process of
// the run.
func TestSnapshotStaysAsItWas(t *testing.T) {
	t.Parallel()
	dir, file := t.TempDir(), filepath.Join(t.TempDir(), "runs", "run_1", "base.zip")
	write(t, dir, "a", "as it was", 0o755)
	defer func() { // private to the user
		for name, want := range map[string]fs.FileMode{file: 0o600, filepath.Dir(file): fs.ModeDir | 0o700, filepath.Dir(filepath.Dir(file)): fs.ModeDir | 0o700} {
			info, err := os.Stat(name)
			must(t, err)
			if info.Mode() != want {
				t.Errorf("%s is %v, want %v", name, info.Mode(), want)
			}
		}
	}()
	for range 2 {
		snapshot, err := NewSnapshot(t.Context(), Place{Dir: dir}, file)
		must(t, err)
		dst := &memory{files: map[string]string{}}
		must(t, snapshot.copyTo(t.Context(), dst))
		if diff := cmp.Diff(map[string]string{"a": "-rwxr-xr-x as it was"}, dst.files); diff != "" {
			t.Errorf("copied (-want +got):\n%s", diff)
		}
		must(t, os.RemoveAll(dir)) // the second snapshot does not need it
	}
}

// TestPlaceWithin verifies that a directory from an untrusted file must be below Within, however its path is written
// and even through links.
func TestPlaceWithin(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	repository, secret := filepath.Join(home, "repository"), filepath.Join(home, "secret")
	write(t, repository, "project/a", "a", 0o600)
	write(t, secret, "key", "k", 0o600)
	for name, target := range map[string]string{"out": "../secret", "up": "..", "chain": "project/../out", "in": "project", "absolute": secret} {
		must(t, os.Symlink(target, filepath.Join(repository, name)))
	}
	for dir, inside := range map[string]bool{
		"project": true, "in": true, ".": true, "project/../in": true, filepath.Join(repository, "project"): true,
		"out": false, "up": false, "chain": false, "absolute": false, "out/.": false, "up/secret": false, "..": false, "../secret": false, secret: false, "/": false,
	} {
		at := Place{Dir: dir, Within: repository}
		if !filepath.IsAbs(dir) {
			at.Dir = repository + "/" + dir
		}
		file := filepath.Join(t.TempDir(), "base.zip")
		snapshot, err := NewSnapshot(t.Context(), at, file)
		if inside && (err != nil || !strings.HasPrefix(snapshot.Dir(), repository)) || !inside && (!errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "leads outside")) {
			t.Errorf("%s: %v", dir, err)
		}
		if err := snapshot.Take(t.Context()); (err == nil) != inside {
			t.Errorf("%s: taken: %v", dir, err)
		}
		// The run continues with the files of an earlier process, in the same directory.
		if again, err := NewSnapshot(t.Context(), at, file); inside && (err != nil || again.Dir() != snapshot.Dir()) {
			t.Errorf("%s again: %q, %v", dir, again.Dir(), err)
		}
	}
}

// TestReplacedDirectory verifies that Dir returns the copied directory even if a link replaces it later. Dir returns ""
// if another host took the snapshot.
func TestReplacedDirectory(t *testing.T) {
	t.Parallel()
	above, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	dir, other := filepath.Join(above, "project"), filepath.Join(above, "other")
	file := filepath.Join(t.TempDir(), "base.zip")
	write(t, dir, "a", "a", 0o600)
	write(t, other, "key", "k", 0o600)
	replaced := func(by string) {
		must(t, os.RemoveAll(dir))
		must(t, os.Symlink(by, dir))
	}
	first, err := NewSnapshot(t.Context(), Place{Dir: dir}, file)
	must(t, err)
	late, err := NewSnapshot(t.Context(), Place{Dir: dir}, "")
	must(t, err)
	must(t, first.Take(t.Context()))
	replaced("other")
	if err := late.Take(t.Context()); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("another directory is copied: %v", err)
	}
	again, err := NewSnapshot(t.Context(), Place{Dir: dir}, file)
	if err != nil || again.Dir() != dir {
		t.Errorf("the directory is %q, want %q: %v", again.Dir(), dir, err)
	}
	must(t, again.Remove())
	write(t, filepath.Dir(file), "base.zip", "", 0o600)
	if sent, err := NewSnapshot(t.Context(), Place{Dir: dir}, file); err != nil || sent.Dir() != "" {
		t.Errorf("the directory of another machine's snapshot is %q, %v", sent.Dir(), err)
	}
}

func TestWorkspaceThatIsNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "file", "x", 0o644)
	for _, path := range []string{filepath.Join(dir, "missing"), filepath.Join(dir, "file")} {
		if _, err := CheckWorkspace(t.Context(), Place{Dir: path}); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: error = %v, want invalid", path, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := CheckWorkspace(ctx, Place{Dir: dir}); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want canceled", err)
	}
}
