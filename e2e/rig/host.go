package rig

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/commandtest"
)

// Tests are the tests of a package that runs the command.
type Tests struct {
	M      interface{ Run() int }
	Binary *string // set to the path of the command before the first test
}

// Run builds the command, runs the tests, and returns the exit code.
func (t Tests) Run() int {
	dir, err := os.MkdirTemp("", "workcell-tests-")
	if err == nil {
		*t.Binary, err = commandtest.Build(dir)
	}
	code := 1
	if err == nil {
		code = t.M.Run()
	}
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	return code
}

// Host is a user's host. The commands have the variables of Environ and Env, and no others.
type Host struct {
	Binary string   // path of the command
	State  string   // state directory of the command, below the home directory
	Env    []string // more variables
	Prefix []string // wrapper of the command, with arguments
}

// Path returns the path of a file in the home directory.
func (h *Host) Path(name string) string { return filepath.Join(filepath.Dir(h.State), name) }

// Command returns a run of the command.
func (h *Host) Command(args ...string) *exec.Cmd {
	argv := slices.Concat(h.Prefix, []string{h.Binary}, args)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(Environ(), "HOME="+filepath.Dir(h.State), "WORKCELL_STATE_DIR="+h.State)
	cmd.Env = append(cmd.Env, h.Env...)
	return cmd
}

// Run runs the command until it exits.
func (h *Host) Run(t testing.TB, args ...string) Result {
	t.Helper()
	return Run(t, h.Command(args...))
}

// Start starts the command. It is killed at the end of the test.
func (h *Host) Start(t testing.TB, args ...string) *Process {
	t.Helper()
	return Start(t, h.Command(args...))
}

// OK runs the command, which must succeed, and returns the standard output.
func (h *Host) OK(t testing.TB, args ...string) string {
	t.Helper()
	out, err := Output(h.Command(args...))
	checktest.Must(t, err)
	return out
}

// Read runs the command with -o json and decodes the output.
func (h *Host) Read(t testing.TB, v any, args ...string) {
	t.Helper()
	checktest.Must(t, json.Unmarshal([]byte(h.OK(t, append(args, "-o", "json")...)), v))
}

// Bearer is a transport that adds a token to requests, unless it is empty.
type Bearer struct {
	Token string
	Base  http.RoundTripper // nil for the default transport
}

// RoundTrip sends a request.
func (b Bearer) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	if b.Token != "" {
		r.Header.Set("Authorization", "Bearer "+b.Token)
	}
	return cmp.Or(b.Base, http.DefaultTransport).RoundTrip(r)
}
