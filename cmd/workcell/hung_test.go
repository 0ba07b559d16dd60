package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestEngineThatHangs points commands at a socket that takes connections and never answers.
func TestEngineThatHangs(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "workcell") // t.TempDir is too long a path for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for _, args := range [][]string{{"doctor"}, {"sessions", "ls"}} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			cmd := workcell(t, args...)
			cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "WORKCELL_STATE_DIR=" + t.TempDir(), "DOCKER_HOST=unix://" + socket}
			began := time.Now()
			out, err := cmd.CombinedOutput()
			if err == nil || cmd.ProcessState.ExitCode() != exitUnavailable {
				t.Errorf("%v, want exit code %d\n%s", err, exitUnavailable, out)
			}
			// What is promised is 5 s; the rest is for a busy machine.
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %s", took)
			}
			if !strings.Contains(string(out), "start Docker") && !strings.Contains(string(out), "workcell doctor") {
				t.Errorf("no hint:\n%s", out)
			}
		})
	}
}
