package main

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
)

// lostUser returns a user of a database. bury makes the leases of all users of the database expire.
func lostUser(t *testing.T) (u user, bury func()) {
	url := pgtest.Database(t)
	u = newUser(t, "local")
	u.environ = append(u.environ, state.Variable+"="+url)
	t.Cleanup(func() { removeSandboxes(t, u.environ, "local") })
	return u, func() { pgtest.Exec(t, url, `DELETE FROM workcell.owner`) }
}

// until waits until a command has printed a text to standard error.
func (r *running) until(text string) {
	r.t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); !strings.Contains(r.stderr.String(), text); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			r.t.Fatalf("it does not say %q:\n%s", text, r.stderr.String())
		}
	}
}

func (u user) start(args ...string) *running {
	u.t.Helper()
	r := &running{user: u, done: make(chan error, 1)}
	r.cmd = u.command(args...)
	r.cmd.Stdout, r.cmd.Stderr = &r.stdout, &r.stderr
	checktest.Must(u.t, r.cmd.Start())
	go func() { r.done <- r.cmd.Wait() }()
	u.t.Cleanup(func() { _ = r.cmd.Process.Kill() }) // already ended, unless the test failed
	return r
}

// TestServerTakenForDead verifies that `workcell dev` ends with an error if the lease is lost.
func TestServerTakenForDead(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "waiting.yaml")
	checktest.Must(t, os.WriteFile(path, []byte(waiting), 0o600))
	u, bury := lostUser(t)
	r := u.start("dev", path)
	r.until("serving ")
	bury()
	r.ends(app.ExitFailed)
	r.until("lost its lease")
}

// TestServerEndsInOrder verifies that SIGTERM ends an MCP server over HTTP with exit code 0, as it ends a worker.
func TestServerEndsInOrder(t *testing.T) {
	t.Parallel()
	r := newUser(t, "local").start("mcp", "--transport", "http", "--listen", "127.0.0.1:0")
	r.until("serving ")
	checktest.Must(t, r.cmd.Process.Signal(syscall.SIGTERM))
	r.ends(0)
}

// TestServerAwaitsDatabase verifies that an MCP server starts without the database and outlives an outage that is
// longer than a lease. It is alive all the time, and ready while it reaches the database. SIGTERM is an orderly end.
func TestServerAwaitsDatabase(t *testing.T) {
	t.Parallel()
	server := pgtest.NewServer(t)
	server.Kill()
	u := newUser(t, "local")
	u.environ = append(u.environ, state.Variable+"="+server.URL)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	checktest.Must(t, err)
	address := l.Addr().String()
	checktest.Must(t, l.Close())
	r := u.start("mcp", "--transport", "http", "--listen", address)
	var failed error
	status := func(path string) int {
		res, err := http.Get("http://" + address + path)
		if failed = err; err != nil {
			return 0
		}
		res.Body.Close() //nolint:errcheck // the status is enough
		return res.StatusCode
	}
	up := false
	ready := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(3 * time.Minute); status("/readyz") != want; time.Sleep(20 * time.Millisecond) {
			if alive := status("/healthz"); alive == http.StatusOK {
				up = true
			} else if up || time.Now().After(deadline) {
				t.Fatalf("/healthz: %d, %v, /readyz: not %d\n%s", alive, failed, want, r.stderr.String())
			}
		}
	}
	for range 2 {
		ready(http.StatusServiceUnavailable)
		if got := status("/mcp"); got != http.StatusServiceUnavailable {
			t.Errorf("/mcp: %d", got)
		}
		server.Start()
		ready(http.StatusOK)
		server.Kill()
	}
	server.Start()
	ready(http.StatusOK)
	checktest.Must(t, r.cmd.Process.Signal(syscall.SIGTERM))
	r.ends(0)
}

// TestRunTakenForDead verifies that a run whose process lost its lease ends in the middle of a step and keeps the
// sandbox for the resuming process.
func TestRunTakenForDead(t *testing.T) {
	t.Parallel()
	u, bury := lostUser(t)
	path := filepath.Join(t.TempDir(), "waiting.yaml")
	checktest.Must(t, os.WriteFile(path, []byte(waiting), 0o600))
	r := u.start("run", path)
	r.until("run_")
	for deadline := time.Now().Add(3 * time.Minute); r.command("sandbox", "exec", r.runID(), "--", "cat", "state").Run() != nil; {
		if time.Now().After(deadline) {
			t.Fatalf("the step does not wait:\n%s", r.stderr.String())
		}
	}
	bury()
	r.ends(app.ExitFailed)
	r.until("lost its lease")
	if n := len(r.sandboxes()); n != 1 {
		t.Errorf("%d sandboxes are left", n)
	}
	if out, _ := u.run(0, "runs", "show", r.runID()); !strings.Contains(out, app.RunInterrupted) {
		t.Errorf("the run is not interrupted:\n%s", out)
	}
}
