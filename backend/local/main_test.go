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
)

const instance = "local-test"

// sharedEnv names the state directory that the processes of one test share.
const sharedEnv = "WORKCELL_LOCAL_TEST_STATE"

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

// runTests makes the state directory that tests share, unless this is a process that one of them started.
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
		// Some tests kill processes at work; the next ones clean up behind those.
		if b, err := local.New(context.Background(), &local.Options{StateDir: dir}); err == nil {
			_ = b.Close() // it made nothing
		}
		left, err := rest(dir)
		left = append(left, backendtest.LoopDevices(dir)...)
		if err != nil || len(left) > 0 {
			fmt.Fprintf(os.Stderr, "left in the shared state directory: %q, %v\n", left, err)
			code = 1
		}
		_ = os.RemoveAll(dir) // the machine's own temporary directory
	}()
	return m.Run()
}

// shared is the state directory that all processes of the tests see.
func shared() string { return os.Getenv(sharedEnv) }

// stateDir makes a state directory of the test's own. At its end nothing may be left there.
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

// rest lists what is in a state directory and what of its sandboxes is in control groups.
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

// leftovers lists what is there of an installation.
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

// mainPID returns the process of a sandbox, as the state directory tells it.
func mainPID(dir, id string) (int, error) {
	var p struct{ PID int }
	b, err := os.ReadFile(filepath.Join(boxDir(dir, id), "run.json"))
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	return p.PID, err
}

// vanish removes a sandbox by hand, running or not. Its workspace stays.
func vanish(dir, id string) error {
	if pid, err := mainPID(dir, id); err == nil {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
	if err := os.RemoveAll(boxDir(dir, id)); err != nil {
		return err
	}
	_, nonce, _ := strings.Cut(id, "@")
	groups, err := filepath.Glob("/sys/fs/cgroup/*/" + local.GroupPrefix(dir) + nonce)
	for _, g := range groups {
		for end := time.Now().Add(3 * time.Minute); err == nil; time.Sleep(10 * time.Millisecond) {
			if err = os.Remove(g); err == nil {
				break
			}
			if time.Now().Before(end) {
				err = nil
			}
		}
	}
	return err
}

// describe returns all that the state directory tells of a sandbox, or of something else in its place.
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

// foreign puts a directory among the sandboxes that is none.
func foreign(t testing.TB, dir string, labels map[string]string) []string {
	name := "foreign-" + strings.ToLower(rand.Text())
	text, err := json.Marshal(labels)
	must(t, err)
	own := boxDir(dir, name)
	must(t, os.MkdirAll(own, 0o700))
	t.Cleanup(func() { _ = os.RemoveAll(own) }) // a failure shows as something left
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

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lock takes a lock as a process at work does.
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
