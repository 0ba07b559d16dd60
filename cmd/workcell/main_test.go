package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// testImages stand in for the official images in tests, so that no registry is needed.
const testImages = "python:3.11-slim=workcell/python:3.11,node:20-slim=workcell/node:22,debian:bookworm-slim=workcell/debian:12"

// TestMain lets scripts and tests start this binary as the command itself, in a process of its own.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"workcell": main})
}

// TestScripts runs testdata/*.txtar: the real command against the real engine. Each script has its own state directory
// and so its own instance; what it leaves open is removed at its end.
func TestScripts(t *testing.T) {
	t.Parallel()
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       os.Getenv("UPDATE_GOLDEN") != "",
		Setup: func(e *testscript.Env) error {
			e.Setenv("WORKCELL_STATE_DIR", filepath.Join(e.WorkDir, ".state"))
			e.Setenv("WORKCELL_IMAGE_MAP", testImages)
			e.Setenv("EXAMPLES", examples)
			for _, name := range []string{"DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "GOCOVERDIR"} {
				if v, ok := os.LookupEnv(name); ok {
					e.Setenv(name, v)
				}
			}
			environ := append([]string(nil), e.Vars...)
			e.Defer(func() { removeSandboxes(t, environ) })
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"code": cmdCode},
	})
}

// cmdCode is "code N PROGRAM ARG…": runs a program, which must exit with N.
func cmdCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N program arg...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	err = ts.Exec(args[1], args[2:]...)
	got := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		got = exit.ExitCode()
	} else {
		ts.Check(err)
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
}

// workcell gives the command in a process of its own with a state directory of its own.
func workcell(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Args = append([]string{"workcell"}, args...) // the test binary acts by its name
	return cmd
}

// testEnviron is this process's environment with a fresh state directory and the test images, and without whatever
// would make a run talk to the outside. What is left open under it is removed at the end of the test.
func testEnviron(t *testing.T) []string {
	t.Helper()
	var out []string
	for _, name := range []string{"PATH", "HOME", "DOCKER_HOST", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "GOCOVERDIR", "SYSTEMROOT"} {
		if v, ok := os.LookupEnv(name); ok {
			out = append(out, name+"="+v)
		}
	}
	out = append(out, "WORKCELL_STATE_DIR="+t.TempDir(), "WORKCELL_IMAGE_MAP="+testImages)
	t.Cleanup(func() { removeSandboxes(t, out) })
	return out
}

// removeSandboxes removes what a test left open.
func removeSandboxes(t *testing.T, environ []string) {
	cmd := workcell(t, "sessions", "rm", "--all")
	cmd.Env = environ
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Logf("clean-up: %v\n%s", err, out) // a script with a dead engine has nothing to clean up
	}
}
