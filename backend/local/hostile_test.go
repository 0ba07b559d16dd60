//go:build linux

package local_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/local"
)

// TestMissingState verifies the errors of Start and Create after files of the state directory were removed or replaced.
// It also verifies that the errors do not contain the path of the directory.
func TestMissingState(t *testing.T) {
	t.Parallel()
	loop := func(path string) error { return errors.Join(os.RemoveAll(path), os.Symlink("files", path)) }
	for what, test := range map[string]struct {
		path  func(dir string, info backend.Info) string
		harm  func(path string) error
		begin error // of a start
		fresh error // of another sandbox
	}{
		"workspace": {filesOf, os.RemoveAll, backend.ErrLost, nil},
		"loop":      {filesOf, loop, backend.ErrUnsupported, nil},
		"guest": {func(dir string, _ backend.Info) string { return filepath.Join(dir, "guest") }, os.RemoveAll,
			backend.ErrUnavailable, backend.ErrUnavailable},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			dir := stateDir(t)
			b := newBackendWith(t, local.Options{StateDir: dir})
			info := backendtest.Create(t, b, newSpec())
			must(t, errors.Join(b.Stop(t.Context(), info.ID), test.harm(test.path(dir, info))))
			err := b.Start(t.Context(), info.ID)
			if !errors.Is(err, test.begin) || errors.Is(err, backend.ErrUnsupported) != errors.Is(test.begin, backend.ErrUnsupported) ||
				strings.Contains(err.Error(), dir) {
				t.Errorf("Start: %v, want %v", err, test.begin)
			}
			other, err := b.Create(t.Context(), newSpec())
			if err == nil {
				backendtest.Remove(t, b, other.ID)
			}
			if !errors.Is(err, test.fresh) || err != nil && strings.Contains(err.Error(), dir) {
				t.Errorf("Create: %v, want %v", err, test.fresh)
			}
		})
	}
}

func filesOf(dir string, info backend.Info) string {
	return filepath.Join(dir, "workspaces", info.SessionID, "files")
}

// TestOOMScores verifies that the kernel kills commands before the guest agent if memory runs out. Neither commands nor
// the score of the host process can change this.
func TestOOMScores(t *testing.T) {
	t.Parallel()
	b := newBackend(t, stateDir(t))
	conn := backendtest.Dial(t, b, backendtest.Create(t, b, newSpec()).ID)
	const script = `
own=$(cat /proc/self/oom_score_adj)
while guest=$(cat /proc/1/oom_score_adj) && test "$guest" -eq "$own"; do sleep 0.01; done # while the guest makes a process
test "$guest" -ge 0 || echo "the guest has $guest"
test "$own" -gt "$guest" || echo "a command has $own, the guest $guest"
if (echo $((guest - 1)) > /proc/self/oom_score_adj) 2>/dev/null; then echo "a command can have less than the guest's $guest"; fi
`
	if got := backendtest.Sh(t, conn, script); got != "" {
		t.Error(got)
	}
}

// withScore returns the first arguments of a command line to run a process with this OOM score adjustment.
func withScore(score string) []string {
	return []string{"/bin/sh", "-c", `echo "$0" > /proc/self/oom_score_adj; exec "$@"`, score}
}

// TestOOMScoresOfHost verifies the scores if the host process is protected or has a raised score.
func TestOOMScoresOfHost(t *testing.T) {
	t.Parallel()
	t.Run("protected", func(t *testing.T) {
		t.Parallel()
		exe, err := os.Executable()
		must(t, err)
		argv := append(withScore("-500"), exe, "-test.run=^TestOOMScores$", "-test.count=1", "-test.timeout=9m")
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
	})
	t.Run("ordinary", func(t *testing.T) {
		t.Parallel()
		asOrdinaryUser(t, "^TestOOMScores$", withScore("300")...)
	})
}

// mountedEnv is set in a child process of TestMountedWorkspace with a private mount namespace.
const mountedEnv = "WORKCELL_LOCAL_TEST_MOUNTED"

// TestMountedWorkspace verifies that removing a sandbox does not touch foreign mounts in the workspace.
func TestMountedWorkspace(t *testing.T) {
	if os.Getenv(mountedEnv) == "" {
		t.Parallel()
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestMountedWorkspace$", "-test.count=1", "-test.timeout=9m")
		cmd.Env = append(os.Environ(), mountedEnv+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	dir, precious := stateDir(t), t.TempDir()
	b := newBackend(t, dir)
	info := backendtest.Create(t, b, newSpec())
	conn := backendtest.Dial(t, b, info.ID)
	backendtest.Sh(t, conn, "mkdir -p a/b/c d && touch f")
	for _, point := range []string{"a/b/c", "d", "f", "."} {
		target := filepath.Join(filesOf(dir, info), point)
		source := filepath.Join(precious, "file")
		must(t, os.WriteFile(source, []byte("precious"), 0o600))
		if point != "f" {
			source = precious
		}
		must(t, unix.Mount(source, target, "", unix.MS_BIND, ""))
		err := b.Remove(t.Context(), info.ID, backend.RemoveOptions{Volumes: true})
		if !errors.Is(err, backend.ErrUnavailable) || !strings.Contains(err.Error(), "unmount") || strings.Contains(err.Error(), dir) {
			t.Errorf("%s: Remove: %v", point, err)
		}
		must(t, unix.Unmount(target, unix.MNT_DETACH))
		if got, err := os.ReadFile(filepath.Join(precious, "file")); err != nil || string(got) != "precious" {
			t.Errorf("%s: what was mounted: %q, %v", point, got, err)
		}
		if _, err := os.Stat(target); err != nil {
			t.Errorf("%s: the workspace: %v", point, err)
		}
	}
}
