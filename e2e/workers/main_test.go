//go:build linux

// Package workers runs workers for detached runs, as processes on hosts that share only a database, and kills them.
package workers

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/commandtest"
	"github.com/workcell-dev/workcell/internal/leaktest"
	"github.com/workcell-dev/workcell/workflow"
)

var must, eventually = checktest.Must, checktest.Eventually

// patience is the maximum wait for an expected event.
const patience = 4 * time.Minute

// binary is the path of the command, built once before the first test.
var binary string

func TestMain(m *testing.M) {
	code, err := runTests(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "workers:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func runTests(m *testing.M) (int, error) {
	dir, err := os.MkdirTemp("", "workers-")
	if err != nil {
		return 1, err
	}
	if binary, err = commandtest.Build(dir); err != nil {
		return 1, errors.Join(err, os.RemoveAll(dir))
	}
	code := m.Run()
	err = os.RemoveAll(dir)
	if code == 0 && err == nil {
		err = leaktest.Find()
	}
	return code, err
}

// machine is a host for commands, with a separate state directory and the common database.
type machine struct {
	name, state, url string
	within           []string // prefix of its commands
}

// newMachine returns a machine in the test's own network.
func newMachine(t *testing.T, name, url string) *machine {
	t.Helper()
	return &machine{name: name, state: filepath.Join(t.TempDir(), name), url: url}
}

func (m *machine) command(args ...string) *exec.Cmd {
	argv := append(append(append([]string{}, m.within...), binary), args...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Dir(m.state), "WORKCELL_STATE_DIR=" + m.state, "WORKCELL_STATE=" + m.url,
		"WORKCELL_BACKEND=local", "WORKCELL_REAPER=off",
	}
	return cmd
}

func (m *machine) run(t *testing.T, args ...string) rig.Result {
	t.Helper()
	return rig.Run(t, m.command(args...))
}

func (m *machine) start(t *testing.T, args ...string) *rig.Process {
	t.Helper()
	return rig.Start(t, m.command(args...))
}

// ok runs a command, which must succeed, and returns its standard output without the last line end.
func (m *machine) ok(t *testing.T, args ...string) string {
	t.Helper()
	out, err := rig.Output(m.command(args...))
	must(t, err)
	return strings.TrimSuffix(out, "\n")
}

// read runs a command with -o json and decodes its output.
func (m *machine) read(t *testing.T, v any, args ...string) {
	t.Helper()
	must(t, json.Unmarshal([]byte(m.ok(t, append(args, "-o", "json")...)), v))
}

// shown is a run in the output of `runs show`.
type shown struct {
	ID, State string
	Entries   []workflow.Entry
}

func (m *machine) show(t *testing.T, id string) (s shown) {
	t.Helper()
	m.read(t, &s, "runs", "show", id)
	return s
}

// worker starts a worker and waits until it is working.
func (m *machine) worker(t *testing.T, args ...string) *rig.Process {
	t.Helper()
	p := m.start(t, append([]string{"worker"}, args...)...)
	eventually(t, "the worker of "+m.name+" works", func() bool { return strings.Contains(p.Text(), "worker started") })
	return p
}

// file writes a file to a new directory and returns its path.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
