package sessiontest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// Service verifies connections from commands to host services. The sandbox of s must have Python 3. connect must return
// a session of another process on the same sandbox.
func Service(t *testing.T, s *session.Session, connect func() *session.Session) {
	t.Run("refused", func(t *testing.T) { serviceRefused(t, s) })
	served := serve(t, s)
	t.Run("commands", func(t *testing.T) {
		runCases(t, s, []sessionCase{
			{"grant", served.grants}, {"no grant", served.ungranted}, {"grandchild", served.grandchild},
			{"half-close", served.halfClose}, {"back-pressure", served.bytes},
			{"end of the command", served.commandEnds}, {"deadline", extendExec},
		})
	})
	t.Run("model", func(t *testing.T) { model(t, s) })
	t.Run("take-over", func(t *testing.T) { served.takeOver(t, s, connect()) })
}

// connectTools is the beginning of a Python program for the service "tools".
const connectTools = `
import os, select, socket
def connect():
	s = socket.socket(socket.AF_UNIX)
	s.connect("\0" + os.environ["WORKCELL_TOOLS"][1:])
	return s
def rest(s):
	s.shutdown(socket.SHUT_WR)
	return s.makefile().read()
`

// tools is a test service. Each command's grant is the handler for the command's connections.
type tools struct {
	addr string
	stop func()
}

type handler func(context.Context, *sandbox.ServiceConn)

// serve serves tools until the end of the test.
func serve(t *testing.T, s *session.Session) *tools {
	t.Helper()
	service := sandbox.Service{Name: "tools", Handle: func(ctx context.Context, c *sandbox.ServiceConn) {
		if handle, ok := c.Grant.(handler); ok {
			handle(ctx, c)
			return
		}
		t.Errorf("a connection with the grant %v", c.Grant)
	}}
	addr, stop, err := s.Serve(t.Context(), service)
	must(t, err)
	t.Cleanup(stop)
	return &tools{addr, stop}
}

// program returns a request to run a Python program whose connections are handled by handle.
func (s *tools) program(text string, handle handler) sandbox.ExecRequest {
	return sandbox.ExecRequest{Argv: []string{"python3", "-c", connectTools + text}, Env: map[string]string{"WORKCELL_TOOLS": s.addr},
		Services: []sandbox.ServiceGrant{{Name: "tools", Value: handle}}}
}

// call runs a program, which must succeed, and returns the output.
func (s *tools) call(t *testing.T, on *session.Session, text string, handle handler) string {
	t.Helper()
	res := Run(t, on, s.program(text, handle))
	if res.Status != sandbox.ExecCompleted || res.ExitCode != 0 {
		t.Errorf("%+v, stderr %s", res.ExecStatus, res.Stderr.Bytes())
	}
	return strings.TrimSpace(string(res.Stdout.Bytes()))
}

// echo sends received data back.
func echo(_ context.Context, c *sandbox.ServiceConn) {
	if _, err := io.Copy(c, c); err == nil {
		_ = c.CloseWrite() // an exited command needs no end of stream
	}
}

func serviceRefused(t *testing.T, s *session.Session) {
	for name, svc := range map[string]sandbox.Service{
		"no name":      {Handle: echo},
		"unknown name": {Name: "doors", Handle: echo},
		"no handler":   {Name: "tools"},
		"negative":     {Name: "tools", MaxConns: -1, Handle: echo},
		"too many":     {Name: "tools", MaxConns: 129, Handle: echo},
	} {
		if _, _, err := s.Serve(t.Context(), svc); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	addr, stop, err := s.Serve(t.Context(), sandbox.Service{Name: "tools", Handle: echo})
	must(t, err)
	if again, _, err := s.Serve(t.Context(), sandbox.Service{Name: "tools", Handle: echo}); !errors.Is(err, backend.ErrExists) || again != addr {
		t.Errorf("a second service of the name at %q: %v, the first is at %q", again, err, addr)
	}
	stop()
	stop()
	if _, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: "true", Services: []sandbox.ServiceGrant{{Name: "doors"}}}); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("a grant for what there is not: %v", err)
	}
}

// grants verifies that each command's connections have the command's grant.
func (s *tools) grants(t *testing.T, on *session.Session) {
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			var seen sandbox.ServiceConn
			word := fmt.Sprintf("word %d", i)
			req := s.program(`s = connect(); s.sendall(b"hello"); print(rest(s))`, func(_ context.Context, c *sandbox.ServiceConn) {
				seen = *c
				b, err := io.ReadAll(c)
				if string(b) != "hello" || err != nil {
					t.Errorf("got %q, %v", b, err)
				}
				_, _ = io.WriteString(c, word)
			})
			res := Run(t, on, req)
			if got := strings.TrimSpace(string(res.Stdout.Bytes())); got != word {
				t.Errorf("got %q of %s's, %s", got, word, res.Stderr.Bytes())
			}
			if seen.ExecID != res.ExecID || !strings.HasPrefix(seen.Program, "python3") || len(seen.ConnID) != 16 {
				t.Errorf("connection %s of %s, a %q; the command is %s", seen.ConnID, seen.ExecID, seen.Program, res.ExecID)
			}
		})
	}
	all.Wait()
}

// ungranted verifies that a command without a grant cannot connect.
func (s *tools) ungranted(t *testing.T, on *session.Session) {
	req := s.program(`
try: print(repr(connect().recv(1)))
except ConnectionError as e: print(repr(b""))`, nil)
	req.Services = nil
	if res := Run(t, on, req); strings.TrimSpace(string(res.Stdout.Bytes())) != `b''` {
		t.Errorf("%q, %s", res.Stdout.Bytes(), res.Stderr.Bytes())
	}
}

// grandchild verifies that a process still belongs to its command after it has left the command's session, parents, and
// environment.
func (s *tools) grandchild(t *testing.T, on *session.Session) {
	from := make(chan string, 1)
	req := s.program(`
r, w = os.pipe()
if os.fork() == 0:
	os.setsid()
	if os.fork() == 0:
		address = os.environ["WORKCELL_TOOLS"]
		os.environ.clear()
		os.environ["WORKCELL_TOOLS"] = address
		s = connect(); s.sendall(b"x"); rest(s)
	os._exit(0)
os.close(w); os.wait(); os.read(r, 1)`, func(ctx context.Context, c *sandbox.ServiceConn) {
		from <- c.ExecID
		echo(ctx, c)
	})
	res := Run(t, on, req)
	if got := <-from; got != res.ExecID || res.ExitCode != 0 {
		t.Errorf("the connection has the ID %s, want %s: %s", got, res.ExecID, res.Stderr.Bytes())
	}
}

// halfClose closes the host's direction and verifies that the other direction stays open.
func (s *tools) halfClose(t *testing.T, on *session.Session) {
	late := make(chan string, 1)
	const program = `s = connect(); print(s.makefile().read()); s.sendall(b"late"); s.close()`
	got := s.call(t, on, program, func(_ context.Context, c *sandbox.ServiceConn) {
		_, _ = io.WriteString(c, "early")
		if err := c.CloseWrite(); err != nil {
			t.Error(err)
		}
		b, err := io.ReadAll(c)
		if err != nil {
			t.Error(err)
		}
		late <- string(b)
	})
	if host := <-late; got != "early" || host != "late" {
		t.Errorf("the command got %q, the host %q", got, host)
	}
}

// bytes sends 64 MiB in each direction concurrently. It verifies that an unread connection blocks the command.
func (s *tools) bytes(t *testing.T, on *session.Session) {
	data := noise(64 << 20)
	held, sent := make(chan struct{}), make(chan struct{})
	got := s.call(t, on, `
import hashlib, threading
s = connect(); s.sendall(b"h"); sent = 0; s.setblocking(False)
while select.select([], [s], [], 1)[1]: sent += s.send(bytes(65536))
go = connect(); go.sendall(b"g")
s.setblocking(True); s.shutdown(socket.SHUT_WR); s.recv(1)
print(sent < 8 << 20)
s = connect(); s.sendall(b"t"); h = hashlib.sha256()
def send():
	for i in range(64): s.sendall(b"x" * (1 << 20))
	s.shutdown(socket.SHUT_WR)
sender = threading.Thread(target=send); sender.start()
while True:
	data = s.recv(1 << 20)
	if not data: break
	h.update(data)
sender.join(); e = connect(); e.sendall(b"e"); e.recv(1); print(h.hexdigest())`, func(_ context.Context, c *sandbox.ServiceConn) {
		what := make([]byte, 1)
		_, _ = c.Read(what)
		switch what[0] {
		case 'h': // block the command until it has noticed
			<-held
			_, _ = io.Copy(io.Discard, c)
		case 'g':
			close(held)
		case 't':
			transfer(t, c, data)
			close(sent)
		default: // the command must run until the last byte has arrived, because exiting closes connections
			<-sent
		}
	})
	if want := fmt.Sprintf("True\n%x", sha256.Sum256(data)); got != want {
		t.Errorf("the command got %s, want %s", got, want)
	}
}

// transfer sends data and reads 64 MiB concurrently.
func transfer(t *testing.T, c *sandbox.ServiceConn, data []byte) {
	var sending sync.WaitGroup
	sending.Go(func() {
		if _, err := io.Copy(c, bytes.NewReader(data)); err != nil {
			t.Errorf("sending: %v", err)
		}
		_ = c.CloseWrite() // the other copy reports errors
	})
	if n, err := io.Copy(io.Discard, c); n != 64<<20 || err != nil {
		t.Errorf("%d bytes came: %v", n, err)
	}
	sending.Wait()
}

// commandEnds verifies that a command's exit closes its connections and cancels their contexts.
func (s *tools) commandEnds(t *testing.T, on *session.Session) {
	began, ended := make(chan bool), make(chan error, 1)
	req := s.program("s = connect(); s.sendall(b'x'); s.recv(1)", func(ctx context.Context, c *sandbox.ServiceConn) {
		_, _ = c.Read(make([]byte, 1))
		close(began)
		<-ctx.Done()
		var err error
		for err == nil { // closed asynchronously
			_, err = c.Write([]byte("x"))
		}
		ended <- err
	})
	req.Background = true
	res := Run(t, on, req)
	<-began
	_, err := on.Command(res.ExecID).Signal(t.Context(), "")
	must(t, err)
	<-ended //nolint:errcheck // only wait for the end
}

// extendExec extends the timeout of commands. It verifies that a command runs for exactly that time.
func extendExec(t *testing.T, s *session.Session) {
	for command, by := range map[string]time.Duration{"sleep 10": 90 * time.Second, "sleep 600": time.Second} {
		const limit = 8 * time.Second // time to extend it
		want := map[bool]sandbox.ExecState{true: sandbox.ExecTimedOut, false: sandbox.ExecCompleted}[by == time.Second]
		begun, err := s.Start(t.Context(), sandbox.ExecRequest{Command: command, Timeout: limit})
		must(t, err)
		must(t, begun.Extend(t.Context(), by))
		res, err := begun.Wait(t.Context(), -1)
		if err != nil || res.Status != want || res.Duration < limit+time.Second {
			t.Errorf("%s: %+v, %v, want %s", command, res.ExecStatus, err, want)
		}
	}
	for by, want := range map[time.Duration]error{time.Second: backend.ErrNotFound, 0: backend.ErrInvalid} {
		if err := s.Command("unknown").Extend(t.Context(), by); !errors.Is(err, want) {
			t.Errorf("an unknown command, %v more: %v, want %v", by, err, want)
		}
	}
}

// callKey is the key of a value in the context of model's command.
type callKey struct{}

// model verifies that all processes can use the TCP service. Its connections belong to no command, and their contexts
// have the values of the latest command's call.
func model(t *testing.T, s *session.Session) {
	ctx := context.WithValue(t.Context(), callKey{}, true)
	addr, stop, err := s.Serve(t.Context(), sandbox.Service{Name: "model", Handle: func(ctx context.Context, c *sandbox.ServiceConn) {
		if c.ExecID != "" || c.Grant != nil || ctx.Value(callKey{}) != true {
			t.Errorf("a connection over TCP is of %s, value %v", c.ExecID, ctx.Value(callKey{}))
		}
		echo(ctx, c)
	}})
	must(t, err)
	defer stop()
	var out strings.Builder
	to := sandbox.Streams{Stdout: &out, Stderr: &out}
	_, err = s.Stream(ctx, sandbox.ExecRequest{Argv: []string{"python3", "-c", `
import socket, sys
host, port = sys.argv[1].split(":")
s = socket.create_connection((host, int(port)))
s.sendall(b"hello"); s.shutdown(socket.SHUT_WR); print(s.makefile().read())`, addr}}, to)
	if err != nil || out.String() != "hello\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

// takeOver verifies that another process can take over the service. It does not serve commands of the first process,
// which gets them back by serving again.
func (s *tools) takeOver(t *testing.T, on, other *session.Session) {
	taken := serve(t, other)
	const hello = `
try:
	s = connect(); s.sendall(b"hello"); print(rest(s))
except ConnectionError: print("")`
	if got := s.call(t, on, hello, echo); got != "" {
		t.Errorf("a command of the first process got %q", got)
	}
	if got := taken.call(t, other, hello, echo); got != "hello" {
		t.Errorf("a command of the second process got %q", got)
	}
	s.stop() // after stop, the name is available
	if got := serve(t, on).call(t, on, hello, echo); got != "hello" {
		t.Errorf("a command of the first process, which serves again, got %q", got)
	}
}
