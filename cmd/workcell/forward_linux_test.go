package main

import (
	"bufio"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestSessionsForward verifies that a port of a sandbox without a network is forwarded to the host's loopback
// interface. Forwarding ends when the command is stopped or the sandbox is removed.
func TestSessionsForward(t *testing.T) {
	t.Parallel()
	u := newUser(t, "local")
	u.run(0, "sandbox", "open", "--name", "pages", "--image", "python:3.11-slim")
	u.run(0, "sandbox", "exec", "pages", "--", "sh", "-c", "echo a page >index.html; (python3 -m http.server --bind 127.0.0.1 8080 >/dev/null 2>&1 &) ; "+
		"until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8080))' 2>/dev/null; do sleep 0.05; done")
	forwarding := func(args ...string) (address string, stop func() (int, string)) {
		cmd := u.command(append([]string{"sandbox", "forward", "pages"}, args...)...)
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.StdoutPipe()
		checktest.Must(t, err)
		checktest.Must(t, cmd.Start())
		line, err := bufio.NewReader(out).ReadString('\n')
		address, what, _ := strings.Cut(line, " -> ")
		if err != nil || what != "port 8080 of the sandbox\n" {
			t.Fatalf("%q, %v: %s", line, err, &errs)
		}
		return address, func() (int, string) {
			_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
			_ = cmd.Wait()                          // the test checks the exit code
			return cmd.ProcessState.ExitCode(), errs.String()
		}
	}
	get := func(address string) (string, error) {
		res, err := http.Get("http://" + address + "/")
		if err != nil {
			return "", err
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		return string(body), err
	}
	address, stop := forwarding(":8080")
	if host, _, err := net.SplitHostPort(address); err != nil || host != "127.0.0.1" {
		t.Errorf("listens on %s", address)
	}
	if page, err := get(address); err != nil || page != "a page\n" {
		t.Errorf("%q, %v", page, err)
	}
	_, port, _ := net.SplitHostPort(address)
	if _, stderr := u.run(app.ExitFailed, "sandbox", "forward", "pages", port+":8080"); !strings.Contains(stderr, "use LOCAL:PORT for another local port") {
		t.Errorf("a port that is taken: %s", stderr)
	}
	if code, stderr := stop(); code != app.ExitSignalBase+int(syscall.SIGTERM) {
		t.Errorf("ended with %d: %s", code, stderr)
	}
	if _, err := get(address); err == nil {
		t.Error("the port still answers")
	}

	address, stop = forwarding("--address", "0.0.0.0", ":8080")
	u.run(0, "sandbox", "rm", "pages")
	if _, err := get(strings.Replace(address, "0.0.0.0", "127.0.0.1", 1)); err == nil {
		t.Error("a removed sandbox answers")
	}
	if code, stderr := stop(); code == 0 || !strings.Contains(stderr, "warning: any host that can connect to 0.0.0.0") {
		t.Errorf("ended with %d: %s", code, stderr)
	}
	for _, args := range [][]string{{"0"}, {"65536"}, {"1:2:3"}, {"0:80"}, {"http"}, {"80", "--address", "localhost"}, {"-1"}} {
		u.run(app.ExitUsage, append([]string{"sandbox", "forward", "pages"}, args...)...)
	}
}

// TestSessionsWatch verifies that sandbox events are printed until the command is stopped.
func TestSessionsWatch(t *testing.T) {
	t.Parallel()
	u := newUser(t, "local")
	u.run(0, "sandbox", "open", "--name", "before", "--image", "python:3.11-slim")
	cmd := u.command("sandbox", "ls", "--watch", "-o", "json")
	out, err := cmd.StdoutPipe()
	checktest.Must(t, err)
	checktest.Must(t, cmd.Start())
	events := json.NewDecoder(out)
	next := func(event, name, state string) {
		t.Helper()
		var got struct {
			Event   string
			Sandbox struct{ Name, State string }
		}
		for { // skip sandboxes in creation or removal
			checktest.Must(t, events.Decode(&got))
			if got.Event == event && got.Sandbox.Name == name && got.Sandbox.State == state {
				return
			}
			if got.Sandbox.Name != name {
				t.Fatalf("%+v while waiting for %s of %s", got, event, name)
			}
		}
	}
	next("present", "before", "running")
	u.run(0, "sandbox", "rm", "before")
	next("removed", "before", "removed")
	_ = cmd.Process.Signal(syscall.SIGTERM)
	_ = cmd.Wait() // the test checks the exit code
	if code := cmd.ProcessState.ExitCode(); code != app.ExitSignalBase+int(syscall.SIGTERM) {
		t.Errorf("ended with %d", code)
	}
	u.run(app.ExitUsage, "sandbox", "ls", "--watch", "--all")
}
