//go:build linux

package client_test

import (
	"context"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/guesttest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// startSandbox starts a sandbox and connects to it.
func startSandbox(t testing.TB, o guesttest.ContainerOptions) (*guesttest.Container, *client.Conn) {
	t.Helper()
	o.Binary = binary
	if o.Docker == nil {
		o.Docker = []string{"--pids-limit", "96", "--memory", "256m", "--memory-swap", "256m"}
	}
	sandbox := guesttest.StartContainer(t, o)
	c, err := client.New(context.Background(), sandbox.Dial())
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return sandbox, c
}

// both runs a test as the default user and as the sandbox's root user.
func both(t *testing.T, test func(t *testing.T, user string)) {
	for name, user := range map[string]string{"user": "1000:1000", "root": "0:0"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, user)
		})
	}
}

// alive verifies that the sandbox still works.
func alive(t testing.TB, sandbox *guesttest.Container, c *client.Conn) {
	t.Helper()
	if !sandbox.Running() {
		t.Fatal("the sandbox is dead")
	}
	var res wire.RunResult
	eventually(t, "a command runs again", func() bool {
		var err error
		res, err = c.Run(testContext(t), sh("echo alive"))
		return err == nil
	})
	if string(res.Stdout.Head) != "alive\n" {
		t.Errorf("got %v", brief(res))
	}
}

// TestContainerSocketRefusesCommands verifies that a command cannot connect to the guest agent, neither directly nor
// through the guest agent's program.
func TestContainerSocketRefusesCommands(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, user string) {
		sandbox, c := startSandbox(t, guesttest.ContainerOptions{User: user, Image: "workcell/python:3.11"})
		for _, script := range []string{
			`sleep 1 | /.workcell/workcell-guest connect | head -c 1 | wc -c`,
			`sleep 1 | setsid /.workcell/workcell-guest connect | head -c 1 | wc -c`,
			`python3 -c '
import socket
s = socket.socket(socket.AF_UNIX)
s.settimeout(60)
s.connect("\0workcell-guest")
try:
    print(len(s.recv(1)))
except ConnectionError:
    print(0)
'`,
			// Orphans become children of the guest agent, so they have a parent.
			`(sh -c 'sleep 0.3; sleep 1 | /.workcell/workcell-guest connect > out' >/dev/null 2>&1 &); until [ -e out ]; do sleep 0.1; done; sleep 1.5; wc -c < out`,
		} {
			if res := mustRun(t, c, sh(script)); strings.TrimSpace(string(res.Stdout.Head)) != "0" {
				t.Errorf("%s: got %q %s", script, res.Stdout.Head, res.Stderr.Head)
			}
		}
		// A command also cannot bind the socket's name.
		res := mustRun(t, c, sh(`python3 -c '
import socket
socket.socket(socket.AF_UNIX).bind("\0workcell-guest")' 2>&1 | tail -1`))
		if !strings.Contains(string(res.Stdout.Head), "in use") {
			t.Errorf("got %q", res.Stdout.Head)
		}
		alive(t, sandbox, c)
	})
}

func TestContainerFilesBelongToTheUser(t *testing.T) {
	t.Parallel()
	_, c := startSandbox(t, guesttest.ContainerOptions{})
	mustPut(t, c, "a/b/f", []byte("x"))
	res := mustRun(t, c, sh("stat -c '%u:%g %a' a a/b a/b/f; mkdir closed; touch closed/f; chmod 0 closed; echo x > unreadable; chmod 0 unreadable"))
	if got := string(res.Stdout.Head); got != "1000:1000 755\n1000:1000 755\n1000:1000 644\n" {
		t.Errorf("got %q %s", got, res.Stderr.Head)
	}
	mustPut(t, c, "src", nil)
	for name, op := range ops(t, c) {
		p := "closed/f"
		if name == "list" {
			p = "closed"
		}
		if err := op(p); codeOf(err) != wire.CodePermission || !strings.Contains(err.Error(), p) {
			t.Errorf("%s: %v", name, err)
		}
	}
	fails(t, "unreadable", second(get(t, c, "unreadable")), wire.CodePermission)
	l, err := c.List(testContext(t), wire.ListRequest{Path: ".", Recursive: true})
	if err != nil || l.Truncated {
		t.Errorf("a closed directory spoils the list: %+v, %v", l, err)
	}
}
