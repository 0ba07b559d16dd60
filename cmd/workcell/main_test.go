package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/reaper"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
)

// testImages replace the official images in tests, to avoid a registry.
const testImages = "python:3.11-slim=workcell/python:3.11,node:20-slim=workcell/node:22,debian:bookworm-slim=workcell/debian:12"

// TestMain lets scripts and tests run this binary as the workcell command in a separate process.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"workcell": main, "shop": shop})
}

// TestScripts runs testdata/*.txtar with the real command and real engines. Each script has a separate state directory
// and therefore a separate instance. The remaining sandboxes are removed at the end.
func TestScripts(t *testing.T) {
	t.Parallel()
	runScripts(t, "testdata", "", nil)
}

// TestScriptsOnEveryBackend runs testdata/everywhere/*.txtar on each backend, because the visible behavior must be the
// same.
func TestScriptsOnEveryBackend(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"docker", "containerd", "local"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runScripts(t, filepath.Join("testdata", "everywhere"), name, nil)
		})
	}
}

// TestScriptsOnPostgres runs the same scripts with their state in a database, one database per script. The behavior
// must be the same too.
func TestScriptsOnPostgres(t *testing.T) {
	t.Parallel()
	runScripts(t, filepath.Join("testdata", "everywhere"), "local", func(e *testscript.Env) {
		e.Setenv(state.Variable, pgtest.Database(e.T().(testing.TB)))
	})
}

// runScripts runs the scripts in a directory with a default backend. If backend is empty, the command's default is
// used. adjust may be nil.
func runScripts(t *testing.T, dir, backend string, adjust func(*testscript.Env)) {
	examples, err := filepath.Abs("../../examples")
	checktest.Must(t, err)
	testscript.Run(t, testscript.Params{
		Dir:                 dir,
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_GOLDEN") != "",
		Setup: func(e *testscript.Env) error {
			e.Setenv("WORKCELL_STATE_DIR", filepath.Join(e.WorkDir, ".state"))
			e.Setenv("WORKCELL_IMAGE_MAP", testImages)
			e.Setenv("WORKCELL_BACKEND", backend)
			e.Setenv(reaper.Variable, "off") // a reaper would prevent the removal of the directory
			e.Setenv("EXAMPLES", examples)
			for _, name := range []string{"DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "CONTAINERD_ADDRESS", "GOCOVERDIR"} {
				if v, ok := os.LookupEnv(name); ok {
					e.Setenv(name, v)
				}
			}
			if adjust != nil {
				adjust(e)
			}
			environ := append([]string(nil), e.Vars...)
			e.Defer(func() { removeSandboxes(t, environ, "docker", "containerd", "local") })
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": cmdCode},
	})
}

// cmdCode implements "code N PROGRAM ARG…". It runs a program, which must exit with N.
func cmdCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N program arg...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// workcell returns the command as a separate process.
func workcell(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	checktest.Must(t, err)
	cmd := exec.Command(self)
	cmd.Args = append([]string{"workcell"}, args...) // the test binary selects the behavior by name
	return cmd
}

// testEnviron returns this process's environment with a new state directory and the test images. It removes all
// variables for external services. Remaining sandboxes are removed at the end of the test.
func testEnviron(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, name := range []string{"PATH", "HOME", "DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "CONTAINERD_ADDRESS", "GOCOVERDIR", "SYSTEMROOT"} {
		if v, ok := os.LookupEnv(name); ok {
			out = append(out, name+"="+v)
		}
	}
	out = append(out, "WORKCELL_STATE_DIR="+t.TempDir(), "WORKCELL_IMAGE_MAP="+testImages, reaper.Variable+"=off")
	t.Cleanup(func() { removeSandboxes(t, out, "docker") })
	return out
}

// removeSandboxes removes the remaining sandboxes of a test on some backends.
func removeSandboxes(t *testing.T, environ []string, backends ...string) {
	for _, name := range backends {
		cmd := workcell(t, "sandbox", "rm", "--all", "--backend", name)
		cmd.Env = environ
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("clean-up on %s: %v\n%s", name, err, out)
		}
	}
}

// user runs commands as separate processes with an environment.
type user struct {
	t       *testing.T
	environ []string
}

// newUser returns a user with a separate state directory and a backend. The user's remaining sandboxes are removed at
// the end of the test.
func newUser(t *testing.T, backend string) user {
	u := user{t, append(testEnviron(t), "WORKCELL_BACKEND="+backend)}
	t.Cleanup(func() { removeSandboxes(t, u.environ, backend) })
	return u
}

func (u user) command(args ...string) *exec.Cmd {
	cmd := workcell(u.t, args...)
	cmd.Env = u.environ
	return cmd
}

// run returns the output of a command and checks the exit code.
func (u user) run(code int, args ...string) (stdout, stderr string) {
	u.t.Helper()
	cmd := u.command(args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != code {
		u.t.Errorf("%v: %v, want exit code %d\n%s", args, err, code, errs.String())
	}
	return out.String(), errs.String()
}

// sandboxes returns the keys of the user's sandboxes.
func (u user) sandboxes() []string {
	u.t.Helper()
	out, _ := u.run(0, "sandbox", "ls", "-o", "json")
	var list []app.SandboxView
	checktest.Must(u.t, json.Unmarshal([]byte(out), &list))
	var keys []string
	for _, s := range list {
		keys = append(keys, s.Key)
	}
	return keys
}

// TestEngineThatHangs verifies commands with accepting sockets without answers. The sockets stand for
// Docker and containerd, and auto tries both.
func TestEngineThatHangs(t *testing.T) {
	t.Parallel()
	silent := silentSocket(t)
	for _, test := range []struct{ name, docker, containerd string }{
		{"docker", silent, "/nonexistent"},
		{"both", silent, silent},
	} {
		for _, args := range [][]string{{"doctor"}, {"sandbox", "ls"}} {
			t.Run(test.name+" "+args[0], func(t *testing.T) {
				t.Parallel()
				cmd := workcell(t, args...)
				cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "WORKCELL_STATE_DIR=" + t.TempDir(),
					"DOCKER_HOST=unix://" + test.docker, "CONTAINERD_ADDRESS=" + test.containerd}
				began := time.Now()
				out, err := cmd.CombinedOutput()
				if err == nil || cmd.ProcessState.ExitCode() != app.ExitUnavailable {
					t.Errorf("%v, want exit code %d\n%s", err, app.ExitUnavailable, out)
				}
				// The documented limit is 6 s. The rest is for a busy host. A call of an engine may take two minutes.
				if took := time.Since(began); took > time.Minute {
					t.Errorf("it took %s", took)
				}
				if !strings.Contains(string(out), "unexpected response from socket") || !strings.Contains(strings.ToLower(string(out)), "start docker") {
					t.Errorf("neither why nor what to do:\n%s", out)
				}
			})
		}
	}
}

// silentSocket returns an accepting socket without answers.
func silentSocket(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "workcell") // the path of t.TempDir is too long for a socket
	checktest.Must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	checktest.Must(t, err)
	t.Cleanup(func() { l.Close() })
	return socket
}
