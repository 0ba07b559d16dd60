//go:build linux

// Package workers runs workers for detached runs, as processes on hosts with only a database in common, and kills them.
package workers

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/leaktest"
	"github.com/workcell-dev/workcell/workflow"
)

var must, eventually = checktest.Must, checktest.Eventually

// patience is the maximum wait for an expected event.
const patience = 4 * time.Minute

// binary is the path of the command, built once before the first test.
var binary string

func TestMain(m *testing.M) {
	os.Exit(leaktest.Tests{M: rig.Tests{M: m, Binary: &binary}}.Run())
}

// machine is a host for commands, with a separate state directory and the common database.
type machine struct {
	rig.Host
	name, url string
}

// newMachine returns a machine in the test's own network.
func newMachine(t *testing.T, name, url string) *machine {
	t.Helper()
	m := &machine{rig.Host{Binary: binary, State: filepath.Join(t.TempDir(), name)}, name, url}
	m.Env = []string{"WORKCELL_STATE=" + url, "WORKCELL_BACKEND=local", "WORKCELL_REAPER=off"}
	return m
}

// ok runs a command, which must succeed, and returns the standard output without the last line end.
func (m *machine) ok(t *testing.T, args ...string) string {
	t.Helper()
	return strings.TrimSuffix(m.OK(t, args...), "\n")
}

// shown is a run in the output of `runs show`.
type shown struct {
	ID, State string
	Entries   []workflow.Entry
}

func (m *machine) show(t *testing.T, id string) (s shown) {
	t.Helper()
	m.Read(t, &s, "runs", "show", id)
	return s
}

// worker starts a worker and waits until it is working.
func (m *machine) worker(t *testing.T, args ...string) *rig.Process {
	t.Helper()
	p := m.Start(t, append([]string{"worker"}, args...)...)
	eventually(t, "the worker of "+m.name+" works", func() bool { return strings.Contains(p.Text(), "worker started") })
	return p
}

// file writes a file to a new directory and returns the path.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}
