//go:build linux

package local_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// obstacleEnv is the environment variable with the obstacle. A child process of these tests sets up the obstacle before
// calling New.
const obstacleEnv = "WORKCELL_LOCAL_TEST_OBSTACLE"

// obstacles returns functions to make a part of the isolation impossible, in a process with private namespaces.
func obstacles() map[string]func(state string) error {
	return map[string]func(string) error{
		"nothing":      func(string) error { return nil },
		"few user ids": func(string) error { return nil },
		"no user namespaces": func(string) error {
			return os.WriteFile("/proc/sys/user/max_user_namespaces", []byte("0"), 0)
		},
		"no network namespaces": func(string) error {
			return os.WriteFile("/proc/sys/user/max_net_namespaces", []byte("0"), 0)
		},
		"hidden proc": func(string) error { return unix.Mount("tmpfs", "/proc/bus", "tmpfs", 0, "") },
		"noexec":      func(state string) error { return unix.Mount("tmpfs", state, "tmpfs", unix.MS_NOEXEC, "mode=0700") },
		"no place for the guest": func(state string) error {
			return unix.Mount("tmpfs", state, "tmpfs", 0, "mode=0700,size=64k")
		},
	}
}

// verdict is the result of New in such a process.
type verdict struct {
	Err         string
	Unsupported bool
	Caps        backend.Capabilities
}

// meetObstacle runs in the child process: it sets up the obstacle and calls New.
func meetObstacle(name string) int {
	err := obstacles()[name](shared())
	if err != nil {
		fmt.Fprintln(os.Stderr, "the obstacle:", err)
		return 1
	}
	var v verdict
	b, err := local.New(context.Background(), &local.Options{StateDir: shared()})
	if err != nil {
		v = verdict{Err: err.Error(), Unsupported: errors.Is(err, backend.ErrUnsupported)}
	} else {
		v.Caps = b.Capabilities()
		if err := b.Close(); err != nil {
			v.Err = err.Error()
		}
	}
	if json.NewEncoder(os.Stdout).Encode(v) != nil {
		return 1
	}
	return 0
}

// facing calls New in a child process with an obstacle.
func facing(t *testing.T, obstacle string) verdict {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), sharedEnv+"="+stateDir(t), obstacleEnv+"="+obstacle)
	all := []syscall.SysProcIDMap{{Size: 1<<32 - 1}}
	if obstacle == "few user ids" {
		all[0].Size = 1 << 16
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS, UidMappings: all, GidMappings: all,
		GidMappingsEnableSetgroups: true,
	}
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var v verdict
	if err == nil {
		err = json.Unmarshal(out, &v)
	}
	if err != nil {
		t.Fatalf("%s: %v\n%s%s", obstacle, err, out, errs.String())
	}
	return v
}

// TestMissingIsolation verifies that New fails if a part of the isolation is missing, and that the error names the part
// and how to enable it.
func TestMissingIsolation(t *testing.T) {
	t.Parallel()
	for obstacle, want := range map[string][]string{
		"no user namespaces":    {`cannot set up isolation "user namespace"`, "sysctl -w user.max_user_namespaces="},
		"no network namespaces": {`cannot set up isolation "user namespace"`, "creating namespaces"},
		"hidden proc":           {`cannot set up isolation "proc file system"`, "is hidden"},
		"noexec":                {"noexec"},
	} {
		t.Run(obstacle, func(t *testing.T) {
			t.Parallel()
			v := facing(t, obstacle)
			if !v.Unsupported {
				t.Errorf("%+v, want ErrUnsupported", v)
			}
			for _, w := range want {
				if !strings.Contains(v.Err, w) {
					t.Errorf("%q does not say %q", v.Err, w)
				}
			}
		})
	}
}

// TestNestedNamespaces verifies that New succeeds without an obstacle. Otherwise TestMissingIsolation would prove
// nothing.
func TestNestedNamespaces(t *testing.T) {
	t.Parallel()
	for _, obstacle := range []string{"nothing", "few user ids"} {
		if v := facing(t, obstacle); v.Err != "" || !v.Caps.PIDs {
			t.Errorf("New inside of a user namespace, %s: %+v", obstacle, v)
		}
	}
	if v := facing(t, "no place for the guest"); !strings.Contains(v.Err, "no space left") {
		t.Errorf("a full disk: %+v", v)
	}
}

func TestStateDirOfOthers(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "state")
	must(t, os.Mkdir(dir, 0o700))
	try := func(what string) {
		t.Helper()
		b, err := local.New(t.Context(), &local.Options{StateDir: dir})
		backendtest.Fails(t, what, err, backend.ErrPermission)
		if err == nil {
			_ = b.Close() // the test has already failed
		}
	}
	must(t, os.Chmod(dir, 0o750))
	try("open to a group")
	must(t, errors.Join(os.Chmod(dir, 0o700), os.Chown(dir, 12345, 12345)))
	try("another user's")
}

// TestCancelledNew verifies that a canceled New leaves no files and returns the reason.
func TestCancelledNew(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	backendtest.Fails(t, "New", second(local.New(ctx, &local.Options{StateDir: stateDir(t)})), context.Canceled)
}
