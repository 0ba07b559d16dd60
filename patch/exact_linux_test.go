package patch_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/patch"
)

var must = checktest.Must

// TestLinkAtAnyMoment: nothing is written through a link while a link and a directory in the path are swapped
// repeatedly.
func TestLinkAtAnyMoment(t *testing.T) {
	t.Parallel()
	base, err := filepath.EvalSymlinks(t.TempDir())
	victim, real, link := filepath.Join(base, "victim"), filepath.Join(base, "real"), filepath.Join(base, "link")
	if err := errors.Join(err, os.MkdirAll(filepath.Join(victim, "project"), 0o755),
		os.MkdirAll(filepath.Join(real, "project"), 0o755), os.Symlink(victim, link)); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, real, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	}()
	defer func() { close(stop); <-done }()
	entry := &patch.Entry{Mode: 0o644, Content: []byte("x")}
	p := &patch.Patch{Changes: []patch.Change{{Path: "new", New: entry}}}
	for range 20_000 {
		_, _ = p.Apply(filepath.Join(real, "project")) // most calls fail
		if _, err := os.Lstat(filepath.Join(victim, "project", "new")); err == nil {
			t.Fatal("written through a link")
		}
	}
}

// applyVariable makes the test binary apply patches in a directory until it is killed.
const applyVariable = "PATCH_TEST_APPLY"

func TestMain(m *testing.M) {
	dir := os.Getenv(applyVariable)
	for dir != "" {
		_ = os.WriteFile(filepath.Join(dir, "sub", "large"), nil, 0o600)
		large := patch.Tree{"sub/large": {Mode: 0o644, Content: make([]byte, 64<<20)}}
		if _, err := large.Write(dir, nil, true); err != nil {
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// TestKilledApply: the next apply removes the temporary file of a killed process. It keeps the temporary file of a
// living process, even if that process is stopped. The file never has more permissions than the file that it replaces.
func TestKilledApply(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	mine := filepath.Join(dir, "sub", ".workcell-integration-test-env-local")
	must(t, errors.Join(os.Mkdir(filepath.Join(dir, "sub"), 0o755), os.WriteFile(mine, nil, 0o644)))
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), applyVariable+"="+dir)
	must(t, cmd.Start())
	temporary := func() string {
		found, err := filepath.Glob(filepath.Join(dir, "sub", ".workcell-*"))
		must(t, err)
		for _, name := range found {
			if name != mine {
				return name
			}
		}
		return ""
	}
	signal := func(sig syscall.Signal) {
		must(t, cmd.Process.Signal(sig))
	}
	for temporary() == "" {
		signal(syscall.SIGCONT)
		time.Sleep(time.Millisecond)
		signal(syscall.SIGSTOP)
		for !stopped(t, cmd.Process.Pid) {
			time.Sleep(time.Millisecond)
		}
	}
	info, err := os.Stat(temporary())
	must(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("the temporary file is %v", info.Mode())
	}
	round := 0
	apply := func() {
		t.Helper()
		round++
		small := patch.Tree{"sub/small": {Mode: 0o644, Content: fmt.Append(nil, round)}}
		if r, err := small.Write(dir, nil, true); err != nil || len(r.Conflicts) > 0 {
			t.Fatalf("%+v, %v", r, err)
		}
	}
	if apply(); temporary() == "" {
		t.Error("the file of a living process was removed")
	}
	signal(syscall.SIGKILL)
	_ = cmd.Wait() // it was killed
	if apply(); temporary() != "" {
		t.Errorf("%s is left", temporary())
	}
	if _, err := os.Stat(mine); err != nil {
		t.Error(err)
	}
}

// stopped reports whether a process is stopped.
func stopped(t *testing.T, pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	must(t, err)
	return strings.Contains(string(stat), ") T ")
}
