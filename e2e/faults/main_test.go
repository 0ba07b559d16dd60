//go:build linux

// Package faults kills the command and damages the data, on real engines, and checks for losses and leftovers.
package faults

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/leaktest"
)

// images maps the official images to the images built by `make images`.
const images = "python:3.11-slim=workcell/python:3.11,node:20-slim=workcell/node:22,debian:bookworm-slim=workcell/debian:12"

// patience is the maximum wait for an expected event.
const patience = 3 * time.Minute

// binary is the path of the command, built once before the first test.
var binary string

func TestMain(m *testing.M) {
	if args := os.Getenv(cyclesVariable); args != "" {
		if err := runCycles(args); err != nil {
			fmt.Fprintln(os.Stderr, "cycles:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	err := openLedger()
	code := 1
	if err == nil {
		code = leaktest.Tests{M: rig.Tests{M: m, Binary: &binary}}.Run()
		err = book.print(os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "faults:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// host is a user's host with an engine.
type host struct {
	rig.Host
	engine string
}

// newHost creates a state directory. At the end of the test, it checks the engine for leftovers of the host.
func newHost(t *testing.T, engine string) *host {
	t.Helper()
	h := &host{rig.Host{Binary: binary, State: filepath.Join(t.TempDir(), "state")}, engine}
	h.Env = []string{"WORKCELL_BACKEND=" + engine, "WORKCELL_IMAGE_MAP=" + images, "WORKCELL_REAPER=off"}
	t.Cleanup(func() {
		h.Run(t, "sandbox", "rm", "--all")
		h.nothingLeft(t)
	})
	return h
}

// on runs a test on engines in parallel.
func on(t *testing.T, engines []string, test func(t *testing.T, h *host)) {
	t.Parallel()
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			test(t, newHost(t, engine))
		})
	}
}

// instance returns the id that marks everything of the host on its engine.
func (h *host) instance(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(h.State, "instance"))
	must(t, err)
	return strings.TrimSpace(string(raw))
}

// left returns the host's objects on the engine.
func (h *host) left(t *testing.T) []string {
	t.Helper()
	label := "dev.workcell.instance=" + h.instance(t)
	lists := map[string][][]string{
		"docker": {
			{"docker", "ps", "-aq", "--filter", "label=" + label},
			{"docker", "volume", "ls", "-q", "--filter", "label=" + label},
		},
		"containerd": {
			{"ctr", "--namespace", "workcell", "containers", "ls", "-q", `labels."dev.workcell.instance"==` + h.instance(t)},
			{"grep", "--recursive", "--files-with-matches", "--no-messages", "--exclude-dir=workspace", h.instance(t), "/var/lib/workcell/containerd"},
		},
		"local": {{"grep", "--recursive", "--files-with-matches", "--no-messages", "--exclude-dir=workspace", h.instance(t), "/var/lib/workcell/local"}},
	}
	var left []string
	for _, list := range lists[h.engine] {
		out, err := exec.Command(list[0], list[1:]...).Output()
		if err != nil && list[0] != "grep" { // grep fails if it finds nothing
			t.Fatal(err)
		}
		left = append(left, strings.Fields(string(out))...)
	}
	return left
}

// nothingLeft waits until the engine has no objects of the host. Every command runs the cleanup sweep, so one listing
// command is enough.
func (h *host) nothingLeft(t *testing.T) {
	t.Helper()
	eventually(t, "nothing is left on "+h.engine, func() bool {
		if len(h.left(t)) == 0 {
			return true
		}
		h.OK(t, "sandbox", "ls")
		return false
	})
}
