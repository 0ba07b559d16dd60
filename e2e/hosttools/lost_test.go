package hosttools

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// TestCancelledRequest: a client's cancellation cancels only one call. A cancellation after the answer is ignored.
func TestCancelledRequest(t *testing.T) {
	on(t, func(t *testing.T, m *session.Manager) {
		waits := newWaits()
		d := newDesk(t, m, allow("orders.*"), nil, orders(waits))
		res := d.starts(`
import json, os, socket, time
s = socket.socket(socket.AF_UNIX); s.connect("\0workcell-tools")
answers = s.makefile()
meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientInfo": {"name": "raw", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {}}
def send(method, id=None, **params):
    message = {"jsonrpc": "2.0", "method": method, "params": dict(params, _meta=meta)}
    if id is not None: message["id"] = id
    s.sendall(json.dumps(message).encode() + b"\n")
def answer(id):
    while True:
        got = json.loads(answers.readline())
        if got.get("id") == id: return got
send("tools/call", 1, name="orders_wait", arguments={})
send("tools/call", 2, name="orders_wait", arguments={})
while not os.path.exists("called"): time.sleep(0.05)
send("notifications/cancelled", requestId=1, reason="taken back")
while not os.path.exists("cancelled"): time.sleep(0.05)
send("tools/call", 3, name="orders_lookup", arguments={"id": "3"})
print(answer(3)["result"]["structuredContent"]["total"])
send("notifications/cancelled", requestId=3, reason="late")
send("notifications/cancelled", requestId=99, reason="never sent")
send("tools/call", 4, name="orders_lookup", arguments={"id": "4"})
print(answer(4)["result"]["structuredContent"]["total"])
send("notifications/cancelled", requestId=2, reason="taken back")
while not os.path.exists("over"): time.sleep(0.05)
print("done")`)
		waits.begins(t)
		waits.begins(t)
		d.writes("called")
		if err := waits.end(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		select {
		case err := <-waits.ended:
			t.Errorf("the other call has also ended: %v", err)
		default: // checked again after cancellation
		}
		d.writes("cancelled")
		if err := waits.end(); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		d.writes("over")
		if res = d.ends(res.ExecID); string(res.Stdout.Bytes()) != "12.5\n12.5\ndone\n" {
			t.Errorf("printed %q; %s %s", res.Stdout.Bytes(), res.Status, res.Stderr.Bytes())
		}
		d.works()
	})
}

// breakable is an engine whose connections to sandboxes a test can break.
type breakable struct {
	backend.SandboxBackend

	mu      sync.Mutex // guards the fields below
	streams []io.Closer
}

func (b *breakable) Dial(ctx context.Context, id string) (io.ReadWriteCloser, error) {
	stream, err := b.SandboxBackend.Dial(ctx, id)
	if err == nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.streams = append(b.streams, stream)
	}
	return stream, err
}

func (b *breakable) cut() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, stream := range b.streams {
		_ = stream.Close() // the session has already closed earlier connections
	}
	b.streams = nil
}

// once returns tools whose first call is never answered, and whose later calls are. One tool may be repeated, and one
// may not.
func once(begun chan<- string, ended chan<- error) hosttools.Source {
	tool := func(name string, readOnly bool) hosttools.Tool {
		first := make(chan struct{}, 1)
		first <- struct{}{}
		return hosttools.Tool{
			Definition: hosttools.Definition{Name: name, ReadOnly: readOnly, Destructive: !readOnly},
			Handle: func(ctx context.Context, _ hosttools.Call) (hosttools.Result, error) {
				begun <- name
				select {
				case <-first:
					<-ctx.Done()
					ended <- ctx.Err()
					return hosttools.Result{}, ctx.Err()
				default:
					return hosttools.Result{Text: name}, nil
				}
			},
		}
	}
	return hosttools.Static("once", tool("charge", false), tool("read", true))
}

// TestLinkBreaksUnderCalls: a call whose connection breaks reports an unknown outcome, unless it may be repeated.
func TestLinkBreaksUnderCalls(t *testing.T) {
	onDrivers(t, func(t *testing.T, b backend.SandboxBackend) {
		link := &breakable{SandboxBackend: b}
		begun, ended := make(chan string, 8), make(chan error, 8)
		d := newDesk(t, managerOf(t, link), allow("orders.*", "once.*"), nil, orders(nil), once(begun, ended))
		res := d.starts(`
from workcell import tools, ToolUnavailable
try: print(tools.once.charge())
except ToolUnavailable as e: print(e.code, e.outcome_unknown, e.retryable)
print(tools.orders.lookup(id="1")["total"])
print(tools.once.read())`)
		for _, want := range []string{"charge", "read"} {
			select {
			case got := <-begun:
				if got != want {
					t.Fatalf("%s is called, want %s", got, want)
				}
			case <-time.After(patience):
				t.Fatalf("%s is not called", want)
			}
			link.cut()
			select {
			case err := <-ended:
				if !errors.Is(err, context.Canceled) {
					t.Error(err)
				}
			case <-time.After(patience):
				t.Fatal("the call outlives its connection")
			}
		}
		if res = d.ends(res.ExecID); string(res.Stdout.Bytes()) != "unavailable True False\n12.5\nread\n" {
			t.Errorf("printed %q; %s %s", res.Stdout.Bytes(), res.Status, res.Stderr.Bytes())
		}
		if len(begun) != 1 { // the read-only call was repeated
			t.Errorf("%d calls were repeated", len(begun))
		}
	})
}

// TestFullWorkspace: a result too large for the workspace is an error of the call. With free space again, calls
// succeed.
func TestFullWorkspace(t *testing.T) {
	on(t, func(t *testing.T, m *session.Manager) {
		req := session.Request{Image: pythonImage, Limits: backend.Limits{WorkspaceBytes: 8 << 20}}
		d := newDeskIn(t, m, req, nil, allow("orders.*"), nil, orders(nil))
		// On a workspace without a separate file system, a command above the limit is killed. The ballast leaves 512
		// KiB.
		_, err := d.s.WriteFile(t.Context(), "ballast", bytes.NewReader(make([]byte, 7<<20+512<<10)), sandbox.WriteFileOptions{})
		for size := 7 << 20; errors.Is(err, backend.ErrQuota) && size > 6<<20; size -= 128 << 10 {
			// Minus the overhead of a file system.
			_, err = d.s.WriteFile(t.Context(), "ballast", bytes.NewReader(make([]byte, size)), sandbox.WriteFileOptions{Overwrite: true})
		}
		must(t, err)
		d.prints("quota_exceeded\nquota_exceeded\n12.5\n1048576\n", `
from workcell import tools, ToolError
import os
for save in (None, "all.txt"):
    try: print(len(tools.orders.export(_save=save)))
    except ToolError as e: print(e.code)
print(tools.orders.lookup(id="1")["total"])
os.unlink("ballast")
print(len(tools.orders.export()))`)
		d.works()
	})
}

// starts starts a program that may call tools, in the background.
func (d *desk) starts(code string) sandbox.ExecResult {
	d.t.Helper()
	res := d.python(sandbox.ExecRequest{Background: true}, code)
	if res.Done() {
		d.t.Fatalf("%+v %s", res.ExecStatus, res.Stderr.Bytes())
	}
	return res
}

// ends waits for the end of a command.
func (d *desk) ends(execID string) sandbox.ExecResult {
	d.t.Helper()
	res, err := d.s.Command(execID).Wait(d.t.Context(), patience)
	must(d.t, err)
	return res
}

// writes creates an empty file, for which a program waits.
func (d *desk) writes(name string) {
	d.t.Helper()
	_, err := d.s.WriteFile(d.t.Context(), name, strings.NewReader(""), sandbox.WriteFileOptions{})
	must(d.t, err)
}

// begins waits for a call.
func (w *waits) begins(t *testing.T) {
	t.Helper()
	select {
	case <-w.begun:
	case <-time.After(patience):
		t.Fatal("the program never called")
	}
}
