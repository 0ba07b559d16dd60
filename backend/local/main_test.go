//go:build linux

package local_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/internal/checktest"
)

const instance = "local-test"

// sharedEnv is the environment variable with the shared state directory of a test's processes.
const sharedEnv = "WORKCELL_LOCAL_TEST_STATE"

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

// runTests creates the tests' shared state directory, unless this process is a child process of a test.
func runTests(m *testing.M) (code int) {
	if obstacle := os.Getenv(obstacleEnv); obstacle != "" {
		return meetObstacle(obstacle)
	}
	if os.Getenv(sharedEnv) != "" {
		return m.Run()
	}
	dir, err := os.MkdirTemp("", "workcell-local-")
	if err == nil {
		err = os.Setenv(sharedEnv, dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() {
		// Some tests kill working processes. A new backend cleans up after them.
		if b, err := local.New(context.Background(), &local.Options{StateDir: dir}); err == nil {
			_ = b.Close() // the backend created no sandboxes
		}
		left, err := rest(dir)
		left = append(left, backendtest.LoopDevices(dir)...)
		if err != nil || len(left) > 0 {
			fmt.Fprintf(os.Stderr, "left in the shared state directory: %q, %v\n", left, err)
			code = 1
		}
		_ = os.RemoveAll(dir) // the host's temporary directory
	}()
	return m.Run()
}

// shared returns the shared state directory of all test processes.
func shared() string { return os.Getenv(sharedEnv) }

// stateDir creates a state directory for one test. The end of the test verifies that it is empty.
func stateDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o700))
	t.Cleanup(func() {
		if left, err := rest(dir); err != nil || len(left) > 0 {
			t.Errorf("left in the state directory: %q, %v", left, err)
		}
	})
	return dir
}

// rest lists the remaining objects in a state directory and the remaining control groups of its sandboxes.
func rest(dir string) ([]string, error) {
	var left []string
	for _, sub := range []string{"sandboxes", "workspaces", "ids", "tmp", "trash"} {
		names, err := filepath.Glob(filepath.Join(dir, sub, "*"))
		if err != nil {
			return nil, err
		}
		left = append(left, names...)
	}
	groups, err := filepath.Glob("/sys/fs/cgroup/*/" + local.GroupPrefix(dir) + "*")
	return append(left, groups...), err
}

// leftovers lists the objects of an installation.
func leftovers(dir, instance string) ([]string, error) {
	var left []string
	for _, pattern := range []string{"sandboxes/*/record.json", "workspaces/*/owner.json", "tmp/*/*.json", "trash/*/*.json"} {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err == nil && strings.Contains(string(b), strconv.Quote(instance)) {
				left = append(left, file)
			}
		}
	}
	return left, nil
}

func boxDir(dir, id string) string {
	session, _, _ := strings.Cut(id, "@")
	return filepath.Join(dir, "sandboxes", session)
}

// mainPID returns the main process of a sandbox, as recorded in the state directory.
func mainPID(dir, id string) (int, error) {
	var p struct{ PID int }
	b, err := os.ReadFile(filepath.Join(boxDir(dir, id), "run.json"))
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	return p.PID, err
}

// vanish removes the files and processes of a sandbox without the driver. The workspace remains.
func vanish(dir, id string) error {
	if pid, err := mainPID(dir, id); err == nil {
		_ = syscall.Kill(pid, syscall.SIGKILL) // the process may have exited
	}
	if err := os.RemoveAll(boxDir(dir, id)); err != nil {
		return err
	}
	_, nonce, _ := strings.Cut(id, "@")
	groups, err := filepath.Glob("/sys/fs/cgroup/*/" + local.GroupPrefix(dir) + nonce)
	for _, g := range groups {
		for end := time.Now().Add(3 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
			err := os.Remove(g)
			if err == nil || errors.Is(err, os.ErrNotExist) { // another driver may be faster
				break
			}
			if time.Now().After(end) {
				return err
			}
		}
	}
	return err
}

// describe returns the contents of all files of a sandbox, or of an object with the sandbox's name.
func describe(dir, id string) (string, error) {
	files, err := filepath.Glob(filepath.Join(boxDir(dir, id), "*"))
	var all strings.Builder
	for _, file := range files {
		b, err := os.ReadFile(file)
		if target, isLink := os.Readlink(file); isLink == nil {
			b, err = []byte(target), nil
		}
		if err != nil && !strings.HasSuffix(file, ".sock") {
			return "", err
		}
		fmt.Fprintf(&all, "%s: %s\n", file, b)
	}
	return all.String(), err
}

// foreign creates a directory other than a sandbox among the sandboxes.
func foreign(t testing.TB, dir string, labels map[string]string) []string {
	name := "foreign-" + strings.ToLower(rand.Text())
	text, err := json.Marshal(labels)
	must(t, err)
	own := boxDir(dir, name)
	must(t, os.MkdirAll(own, 0o700))
	t.Cleanup(func() { _ = os.RemoveAll(own) }) // a failure is reported as a leftover
	must(t, os.WriteFile(filepath.Join(own, "labels.json"), text, 0o600))
	return []string{name, name + "@0123456789abcdef"}
}

func newBackend(t testing.TB, dir string) *local.Backend {
	t.Helper()
	return newBackendWith(t, local.Options{StateDir: dir})
}

func newBackendWith(t testing.TB, opts local.Options) *local.Backend {
	t.Helper()
	b, err := local.New(t.Context(), &opts)
	return backendtest.Closing(t, b, err)
}

func newSpec() backend.Spec { return backendtest.Spec(instance, "host") }

var must = checktest.Must

// second returns the error of a call with two results.
func second[T any](_ T, err error) error { return err }

// lock acquires a lock, like a working process.
func lock(t testing.TB, file string) (unlock func()) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err == nil {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX)
	}
	must(t, err)
	return func() {
		must(t, errors.Join(syscall.Flock(int(f.Fd()), syscall.LOCK_UN), f.Close()))
	}
}
