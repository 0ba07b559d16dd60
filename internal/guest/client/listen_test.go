//go:build linux

package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// listen listens for the service "tools", until the end of the test.
func listen(t testing.TB, c *client.Conn, change func(*wire.ListenRequest)) *client.Listener {
	t.Helper()
	req := wire.ListenRequest{Name: "tools", MaxConns: wire.MaxConns, WaitMillis: wire.MaxConnWait}
	if change != nil {
		change(&req)
	}
	l, err := c.Listen(testContext(t), req)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// accept returns the next connection. The end of the test closes it.
func accept(t testing.TB, l *client.Listener) *client.Peer {
	t.Helper()
	p, err := l.Accept(testContext(t))
	must(t, err)
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// caller returns a run of a script whose commands may connect to the service. $TOOLS is a command connecting its
// standard streams to the service.
func caller(l *client.Listener, script string) wire.RunRequest {
	req := sh(script)
	req.Services = []string{"tools"}
	req.Env = append(req.Env, "WORKCELL_TOOLS="+l.Address(), "TOOLS="+binary+" mcp")
	return req
}

// background starts a command and returns while it is running.
func background(t testing.TB, c *client.Conn, req wire.RunRequest) wire.RunRequest {
	t.Helper()
	req.YieldMillis = 0
	mustRun(t, c, req)
	return req
}

// ends waits for a command to exit and returns standard output.
func ends(t testing.TB, c *client.Conn, req wire.RunRequest) string {
	t.Helper()
	res, err := c.Wait(testContext(t), wire.WaitRequest{ExecID: req.ExecID, WaitMillis: -1})
	if err != nil || res.State != wire.ExecCompleted {
		t.Fatalf("%s, %v", brief(res), err)
	}
	return string(res.Stdout.Head) + string(res.Stdout.Tail)
}

// TestAcceptRefuses verifies that processes of commands without a grant cannot connect.
func TestAcceptRefuses(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	l := listen(t, c, nil)
	req := caller(l, "sleep 1000 | $TOOLS; echo $?")
	req.Services = nil
	req.Argv[2] = "mkfifo wait; $TOOLS <>wait; echo $?"
	req.Env = append(req.Env, "HOME=/")
	res := mustRun(t, c, req)
	if out := string(res.Stdout.Head); !strings.HasPrefix(out, `{"jsonrpc":"2.0","id":null,"error":{`) || !strings.HasSuffix(out, "\n69\n") || strings.Count(out, "\n") != 2 {
		t.Errorf("a command without a grant: %q", out)
	}
	req = caller(l, "echo x | WORKCELL_TOOLS=@no-listener $TOOLS; echo $?")
	if res := mustRun(t, c, req); !strings.HasSuffix(string(res.Stdout.Head), "\n69\n") {
		t.Errorf("an address without a listener: %s", brief(res))
	}
	outside, err := net.Dial("unix", l.Address())
	must(t, err)
	defer outside.Close()
	if n, err := outside.Read(make([]byte, 1)); n > 0 || err == nil {
		t.Errorf("a process that is not the guest's: %d bytes, %v", n, err)
	}
	req = sh("true")
	req.Services = []string{"doors"}
	fails(t, "a service that there is not", second(c.Run(testContext(t), req)), wire.CodeInvalid)
}

func TestListenRequests(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for want, requests := range map[wire.Code][]wire.ListenRequest{
		wire.CodeUnsupported: {{Name: "doors", MaxConns: 1, WaitMillis: 1}},
		wire.CodeInvalid: {{Name: "tools", WaitMillis: 1}, {Name: "tools", MaxConns: 129, WaitMillis: 1},
			{Name: "tools", MaxConns: 1}, {Name: "model", MaxConns: 1, WaitMillis: 60001}},
	} {
		for _, req := range requests {
			fails(t, fmt.Sprint(req), second(c.Listen(testContext(t), req)), want)
		}
	}
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	if _, err := c.Listen(ctx, wire.ListenRequest{Name: "tools", MaxConns: 1, WaitMillis: 1}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestBridgeAfterTheHostsEnd verifies that the bridge sends all data of a command after the host has ended its
// direction.
func TestBridgeAfterTheHostsEnd(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	l := listen(t, c, nil)
	data := noise(4 << 20)
	mustPut(t, c, "data", data)
	req := background(t, c, caller(l, "(while [ ! -e go ]; do sleep 0.02; done; cat data) | $TOOLS >answer"))
	p := accept(t, l)
	if _, err := p.Write([]byte("all")); err != nil || p.CloseWrite() != nil {
		t.Fatal(err)
	}
	for { // until the bridge has received the end
		if info, err := c.Stat(testContext(t), wire.PathRequest{Path: "answer"}); err == nil && info.Size == 3 {
			break
		}
	}
	mustPut(t, c, "go", nil)
	if n, err := io.Copy(io.Discard, p); err != nil || n != int64(len(data)) {
		t.Errorf("%d bytes came: %v", n, err)
	}
	ends(t, c, req)
}

// TestConnectionDeadlines verifies the deadlines of a connection. A read over the deadline can be repeated.
func TestConnectionDeadlines(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	l := listen(t, c, nil)
	req := background(t, c, caller(l, "mkfifo in; exec 3<>in; $TOOLS <in >out 3>&- & exec 4>in 3>&-; while [ ! -e go ]; do sleep 0.05; done; echo hello >&4; exec 4>&-; wait"))
	p := accept(t, l)
	must(t, p.SetReadDeadline(time.Now()))
	var timeout net.Error
	if _, err := p.Read(make([]byte, 1)); !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("a read without time: %v", err)
	}
	must(t, p.SetReadDeadline(time.Time{}))
	mustPut(t, c, "go", nil)
	if b, err := io.ReadAll(p); err != nil || string(b) != "hello\n" {
		t.Errorf("later: %q, %v", b, err)
	}
	closed := make(chan error, 1)
	_ = p.CloseWrite()
	ends(t, c, req)
	req = background(t, c, caller(l, "mkfifo in3; $TOOLS <>in3"))
	p = accept(t, l)
	go func() { _, err := p.Read(make([]byte, 1)); closed <- err }()
	_ = p.Close()
	if err := <-closed; !errors.Is(err, net.ErrClosed) {
		t.Errorf("a read of a connection that is closed: %v", err)
	}
	if err := p.SetDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a deadline for it: %v", err)
	}
	ends(t, c, req)
}

// holders returns a script to open connections, wait for their ends, and write each exit status to the file codes.
func holders(n int) string {
	return fmt.Sprintf("mkfifo hold; exec 3<>hold; for i in $(seq %d); do ($TOOLS <hold >out$i; echo $? >>codes) & done; wait", n)
}

// refused returns the number of connections of holders without a response.
func refused(t testing.TB, c *client.Conn) int {
	b, _ := get(t, c, "codes") // the first connection creates the file
	return strings.Count(string(b), "69")
}

func TestConnectionBounds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		change func(*wire.ListenRequest)
		accept bool
		opened int
		want   int
	}{
		"of a listener":  {func(r *wire.ListenRequest) { r.MaxConns = 3 }, true, 8, 5},
		"without accept": {func(r *wire.ListenRequest) { r.WaitMillis = 200 }, false, 10, 6}, // four requests were parked
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, c := start(t)
			l := listen(t, c, test.change)
			req := background(t, c, caller(l, holders(test.opened)))
			for i := 0; test.accept && i < test.opened-test.want; i++ {
				p := accept(t, l)
				if _, err := p.Write([]byte("x")); err != nil {
					t.Error(err)
				}
			}
			eventually(t, "the others are refused", func() bool { return refused(t, c) == test.want })
			if _, err := c.Kill(testContext(t), wire.KillRequest{ExecID: req.ExecID, Signal: "KILL"}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestWaitingConnectionHangsUp verifies that connections of exited processes do not stay in the queue. If a command
// opens more connections than allowed, the last one must still succeed.
func TestWaitingConnectionHangsUp(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	l := listen(t, c, nil)
	req := background(t, c, caller(l, "mkfifo w; for i in $(seq 40); do $TOOLS <>w & sleep 0.05; kill $!; done; touch killed; echo hello | $TOOLS"))
	eventually(t, "they are gone", func() bool { _, err := c.Stat(testContext(t), wire.PathRequest{Path: "killed"}); return err == nil })
	var got []byte
	for string(got) != "hello\n" { // four connections were accepted before their processes were killed
		p := accept(t, l)
		got, _ = io.ReadAll(p)
		_, _ = p.Write(got)
		_ = p.Close()
	}
	if got := ends(t, c, req); got != "hello\n" {
		t.Errorf("got back %q", got)
	}
}

func TestDeadlineBounds(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	extend := func(id string, ms int64) error {
		_, err := c.Extend(testContext(t), wire.DeadlineRequest{ExecID: id, AddMillis: ms})
		return err
	}
	req := background(t, c, sh("sleep 1000"))
	unknown, large := extend("none", 1), extend(req.ExecID, 60_001)
	if codeOf(unknown) != wire.CodeNotFound || codeOf(large) != wire.CodeInvalid {
		t.Errorf("got %v and %v", unknown, large)
	}
	for range 24 * 60 {
		must(t, extend(req.ExecID, 60_000))
	}
	fails(t, "beyond 24 hours", extend(req.ExecID, 1), wire.CodeQuota)
	ended := sh("true")
	mustRun(t, c, ended)
	if err := extend(ended.ExecID, 1); err != nil {
		t.Errorf("one that has ended: %v", err)
	}
}

// TestWaitForTree verifies that waiting for a process tree ends with the command's last process.
func TestWaitForTree(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	id := sleepName(t)
	req := sh("setsid sleep " + id + " >/dev/null 2>&1 </dev/null &")
	mustRun(t, c, req)
	for i := range 20 { // at 0 ms, the command and the wait have ended at the same time
		res, err := c.Wait(testContext(t), wire.WaitRequest{ExecID: req.ExecID, WaitMillis: int64(i%2) * 10, Tree: true})
		if err != nil || res.State != wire.ExecCompleted || sleepers(t, id) == 0 {
			t.Fatalf("%s, %v", brief(res), err)
		}
	}
	kill(t, c, req.ExecID)
	if _, err := c.Wait(testContext(t), wire.WaitRequest{ExecID: req.ExecID, WaitMillis: -1, Tree: true}); err != nil || sleepers(t, id) > 0 {
		t.Errorf("%d processes are left, %v", sleepers(t, id), err)
	}
}
