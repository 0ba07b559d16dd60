//go:build linux

package local_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// ordinaryUser is a user without privileges, and without an entry anywhere.
const ordinaryUser = 61234

// asOrdinaryUser runs tests of this binary as an ordinary user, with a state directory of that user's. The command line
// begins with prefix.
func asOrdinaryUser(t *testing.T, tests string, prefix ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("only root can become somebody else")
	}
	// The directory of temporary files may be root's alone.
	dir, err := os.MkdirTemp("/var/tmp", "workcell-ordinary-")
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // the machine's own temporary directory
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

// copyProgram copies this binary. Another program does it: a file that is open for writing here is so in every process
// that is just being made, too, and cannot be executed meanwhile.
func copyProgram(to string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	return exec.Command("cp", self, to).Run()
}

// An ordinary user owes the same, but for what only a control group can do and what only root can look at.
func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	for _, tests := range []string{
		"/^workspace$", // the guest watches it: only root may mount a file system of that size
		"/^(lifecycle|many|dial|refused|loss|crash|network|isolation)$",
		"/^limits$/^(processes|tmp|owner|unenforceable)$",
	} {
		t.Run(tests, func(t *testing.T) {
			t.Parallel()
			asOrdinaryUser(t, "^TestConformance$"+tests)
		})
	}
}
