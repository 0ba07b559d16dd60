package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestEngineThatHangs points commands at sockets that take connections and never answer: Docker's and containerd's, which
// auto asks both.
func TestEngineThatHangs(t *testing.T) {
	t.Parallel()
	silent := silentSocket(t)
	for _, test := range []struct{ name, docker, containerd string }{
		{"docker", silent, "/nonexistent"},
		{"both", silent, silent},
	} {
		for _, args := range [][]string{{"doctor"}, {"sessions", "ls"}} {
			t.Run(test.name+" "+args[0], func(t *testing.T) {
				t.Parallel()
				cmd := workcell(t, args...)
				cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "WORKCELL_STATE_DIR=" + t.TempDir(),
					"DOCKER_HOST=unix://" + test.docker, "CONTAINERD_ADDRESS=" + test.containerd}
				began := time.Now()
				out, err := cmd.CombinedOutput()
				if err == nil || cmd.ProcessState.ExitCode() != exitUnavailable {
					t.Errorf("%v, want exit code %d\n%s", err, exitUnavailable, out)
				}
				// What is promised is 6 s; the rest is for a busy machine.
				if took := time.Since(began); took > 20*time.Second {
					t.Errorf("it took %s", took)
				}
				if !strings.Contains(string(out), "gives no proper answer") || !strings.Contains(strings.ToLower(string(out)), "start docker") {
					t.Errorf("neither why nor what to do:\n%s", out)
				}
			})
		}
	}
}

// silentSocket returns a socket that takes connections and never answers.
func silentSocket(t *testing.T) string {
	t.Helper()
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
	return socket
}
