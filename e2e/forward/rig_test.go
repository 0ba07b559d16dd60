// Package forward connects to listening programs in real sandboxes.
package forward

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/forward"
	"github.com/workcell-dev/workcell/session/record"
)

var must = checktest.Must

const pythonImage = "workcell/python:3.11" // built by `make images`

// box is a sandbox without a network.
type box struct {
	*session.Session
	t *testing.T
	m *session.Manager
	b backend.SandboxBackend
}

func on(t *testing.T, test func(x *box)) {
	enginetest.On(t, func(t *testing.T, engine string) {
		b := enginetest.Driver(t, engine)
		m := enginetest.Manager(t, b, &session.Options{Instance: "forward-" + record.NewID()})
		s, _, err := m.Open(t.Context(), session.UserKey("u"), session.Request{Image: pythonImage})
		must(t, err)
		test(&box{s, t, m, b})
	})
}

// listening is the beginning of a server program. It writes the port when it listens.
const listening = `
import socket, sys, threading
def listen():
    s = socket.create_server(("127.0.0.1", 0), backlog=128)
    print(s.getsockname()[1], flush=True)
    return s
def serve(handle):
    s = listen()
    while True:
        c, _ = s.accept()
        threading.Thread(target=handle, args=(c,), daemon=True).start()
`

// server starts a Python program in the sandbox. The program writes the listen port, and server returns it.
func (x *box) server(program string) string {
	x.t.Helper()
	_, err := x.WriteFile(x.t.Context(), "server.py", strings.NewReader(listening+program), sandbox.WriteFileOptions{Overwrite: true})
	must(x.t, err)
	res, err := x.Exec(x.t.Context(), sandbox.ExecRequest{Argv: []string{"python3", "server.py"}, Background: true, Timeout: time.Hour})
	must(x.t, err)
	out, since := "", int64(0)
	for !strings.Contains(out, "\n") {
		read, err := x.Command(res.ExecID).Read(x.t.Context(), sandbox.ReadRequest{SinceSeq: since, Wait: time.Minute})
		must(x.t, err)
		for _, c := range read.Chunks {
			out += string(c.Data)
		}
		if since = read.NextSeq; read.Done {
			x.t.Fatalf("the server ended: %+v, %s", read.Status, out)
		}
	}
	port, _, _ := strings.Cut(out, "\n")
	return port
}

func (x *box) dial(port string) net.Conn {
	x.t.Helper()
	c, err := x.DialContext(x.t.Context(), "tcp", "127.0.0.1:"+port)
	must(x.t, err)
	x.t.Cleanup(func() { _ = c.Close() })
	return c
}

// forward forwards a port of the sandbox until the test's end, and returns the address on the host.
func (x *box) forward(port string) string {
	x.t.Helper()
	p, err := forward.ParsePort(":" + port)
	must(x.t, err)
	f, err := forward.Listen(x.Session.Sandbox, []forward.Port{p}, nil)
	must(x.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- f.Serve(ctx) }()
	x.t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			x.t.Errorf("Serve: %v", err)
		}
	})
	return f.Addrs()[0].String()
}

// echo sends received data back.
const echo = `
def echo(c):
    with c:
        while data := c.recv(65536): c.sendall(data)
serve(echo)
`

func (x *box) sh(script string) string {
	x.t.Helper()
	res, err := x.Exec(x.t.Context(), sandbox.ExecRequest{Command: script, Timeout: 5 * time.Minute})
	must(x.t, err)
	return fmt.Sprintf("%d: %s%s", res.ExitCode, res.Stdout.Bytes(), res.Stderr.Bytes())
}
