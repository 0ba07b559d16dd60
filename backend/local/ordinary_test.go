//go:build linux

package local_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// ordinaryUser is an unprivileged user without a passwd entry.
const ordinaryUser = 61234

// asOrdinaryUser runs tests of this binary as an unprivileged user with a separate state directory. prefix contains the
// first arguments of the command line.
func asOrdinaryUser(t *testing.T, tests string, prefix ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("only root can run tests as another user")
	}
	// Only root may have access to the temporary directory.
	dir, err := os.MkdirTemp("/var/tmp", "workcell-ordinary-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // the host's temporary directory
	binary, state, tmp := filepath.Join(dir, "local.test"), filepath.Join(dir, "state"), filepath.Join(dir, "tmp")
	for _, step := range []func() error{
		func() error { return os.Chmod(dir, 0o755) },
		func() error { return copyProgram(binary) },
		func() error { return os.Mkdir(state, 0o700) },
		func() error { return os.Chown(state, ordinaryUser, ordinaryUser) },
		func() error { return os.Mkdir(tmp, 0o700) },
		func() error { return os.Chown(tmp, ordinaryUser, ordinaryUser) },
	} {
		must(t, step())
	}
	argv := append(prefix, binary, "-test.run="+tests, "-test.count=1", "-test.timeout=9m")
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{sharedEnv + "=" + state, "PATH=/usr/bin:/bin", "TMPDIR=" + tmp, "HOME=" + state}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: ordinaryUser, Gid: ordinaryUser}}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("as user %d: %v\n%s", ordinaryUser, err, out)
	}
}

// copyProgram copies this binary with a separate program. A file opened for writing by this process is also open in
// every child process until it calls exec. During that time, the file cannot be executed.
func copyProgram(to string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return exec.Command("cp", self, to).Run()
}

// TestOrdinaryUser verifies that the driver passes the suite as an unprivileged user, except for tests that need
// control groups or root.
func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	for _, tests := range []string{
		"/^workspace$", // only root can mount a sized file system, so the guest agent monitors the workspace
		"/^(lifecycle|many|dial|refused|loss|crash|network|isolation)$",
		"/^limits$/^(processes|tmp|owner|unenforceable)$",
	} {
		t.Run(tests, func(t *testing.T) {
			t.Parallel()
			asOrdinaryUser(t, "^TestConformance$"+tests)
		})
	}
}
