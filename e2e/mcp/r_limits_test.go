package mcp_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/mcpserver"
)

// twoOwners are the tokens of two owners.
func twoOwners() []mcpserver.Token {
	return []mcpserver.Token{{Name: "alice", Secret: aliceToken}, {Name: "bob", Secret: bobToken}}
}

// handshake begins a session of which nothing more is heard.
func handshake(t *testing.T, addr string, header map[string]string) (status int, body, id string) {
	t.Helper()
	status, body, got := doTo(t, http.MethodPost, "http://"+addr+"/mcp", initializeBody, header)
	return status, body, got.Get("Mcp-Session-Id")
}

func ping(t *testing.T, addr, session string, header map[string]string) int {
	t.Helper()
	status, _, _ := doTo(t, http.MethodPost, "http://"+addr+"/mcp", `{"jsonrpc":"2.0","id":9,"method":"ping"}`, with(header, "Mcp-Session-Id", session))
	return status
}

// R6: an owner has so many sessions and no more, however many it begins at once, and leaves the others theirs.
func TestR6SessionsOfOneOwner(t *testing.T) {
	t.Parallel()
	addr := inProcess(t, &mcpserver.HTTPOptions{Tokens: twoOwners(), MaxSessions: 5, MaxOwnerSessions: 3})
	alice, bob := bearer(aliceToken), bearer(bobToken)
	var wg sync.WaitGroup
	var begun atomic.Int64
	ids := make(chan string, 20)
	for range 20 {
		wg.Go(func() {
			status, body, id := handshake(t, addr, alice)
			switch {
			case status == http.StatusOK:
				begun.Add(1)
				ids <- id
			case status != http.StatusTooManyRequests || !strings.Contains(body, "you have 3 sessions"):
				t.Errorf("one too many: %d %s", status, body)
			}
		})
	}
	wg.Wait()
	if n := begun.Load(); n != 3 {
		t.Fatalf("%d sessions where 3 are allowed", n)
	}
	for range 2 {
		if status, body, _ := handshake(t, addr, bob); status != http.StatusOK {
			t.Errorf("another owner: %d %s", status, body)
		}
	}
	if status, body, _ := handshake(t, addr, bob); status != http.StatusServiceUnavailable || !strings.Contains(body, "5 sessions") {
		t.Errorf("a full server: %d %s", status, body)
	}
	if status, _, _ := doTo(t, http.MethodDelete, "http://"+addr+"/mcp", "", with(alice, "Mcp-Session-Id", <-ids)); status != http.StatusNoContent {
		t.Errorf("delete: %d", status)
	}
	until(t, "the place of an ended session is free", func() bool {
		status, _, _ := handshake(t, addr, alice)
		return status == http.StatusOK
	})
}

// until waits for what must come to pass.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it does not come to pass: %s", what)
		}
	}
}

// R6: a session has one stream of events, which is no request, so that its client can still call.
func TestR6Streams(t *testing.T) {
	t.Parallel()
	addr := inProcess(t, &mcpserver.HTTPOptions{MaxRequests: 1})
	status, body, id := handshake(t, addr, nil)
	if status != http.StatusOK {
		t.Fatalf("initialize: %d %s", status, body)
	}
	get := func() (int, string, func()) { return openStream(t, addr, with(nil, "Mcp-Session-Id", id)) }
	status, body, end := get()
	if status != http.StatusOK {
		t.Fatalf("a stream: %d %s", status, body)
	}
	if status, body, _ := get(); status != http.StatusConflict {
		t.Errorf("a second stream of the session: %d %s", status, body)
	}
	if status := ping(t, addr, id, nil); status != http.StatusOK {
		t.Errorf("a call beside the stream: %d", status)
	}
	end()
	until(t, "the place of a stream that ended is free", func() bool {
		status, _, end := get()
		end()
		return status == http.StatusOK
	})
}

// openStream asks for a session's stream of events and returns the beginning of the answer. The stream stays open until
// end, or the test's end.
func openStream(t *testing.T, addr string, header map[string]string) (status int, start string, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+"/mcp", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", "text/event-stream")
	for k, v := range header {
		req.Header.Set(k, v)
	}
	res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	line, err := bufio.NewReader(res.Body).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return res.StatusCode, line, cancel
}

// padded is a ping of so many bytes.
func padded(size int) string {
	const message = `{"jsonrpc":"2.0","id":9,"method":"ping"}`
	return message + strings.Repeat(" ", size-len(message))
}

// watched is a listener that records how much of what came on a connection the server has dealt with: all that it had read
// when it began to read on.
type watched struct {
	net.Listener
	dealt sync.Map // by the client's address: *atomic.Int64, bytes
}

func (l *watched) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	dealt := &atomic.Int64{}
	l.dealt.Store(conn.RemoteAddr().String(), dealt)
	return &watchedConn{Conn: conn, dealt: dealt}, nil
}

type watchedConn struct {
	net.Conn
	read  atomic.Int64
	dealt *atomic.Int64
}

func (c *watchedConn) Read(p []byte) (int, error) {
	c.dealt.Store(c.read.Load())
	n, err := c.Conn.Read(p)
	c.read.Add(int64(n))
	return n, err
}

// stall sends the beginning of a message and waits until the server has it; finish sends the rest and returns the status
// line of the answer.
func (l *watched) stall(t *testing.T, session, token, message string, send int) (finish func() string) {
	t.Helper()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	sent, err := fmt.Fprintf(conn, "POST /mcp HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\nMcp-Session-Id: %s\r\nContent-Type: application/json\r\n"+
		"Accept: application/json, text/event-stream\r\nContent-Length: %d\r\n\r\n%s", l.Addr(), token, session, len(message), message[:send])
	if err != nil {
		t.Fatal(err)
	}
	until(t, "the server has what was sent", func() bool {
		dealt, ok := l.dealt.Load(conn.LocalAddr().String())
		n, isCount := dealt.(*atomic.Int64)
		return ok && isCount && n.Load() >= int64(sent)
	})
	return func() string {
		t.Helper()
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, message[send:]); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(line)
	}
}

// R2: the bodies of requests share a budget of memory, of which an owner has a part.
func TestR2BodiesTogether(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l, addr := &watched{Listener: inner}, inner.Addr().String()
	inProcessOn(t, l, &mcpserver.HTTPOptions{Tokens: twoOwners(), MaxBodyBytes: 20 * mib, BodyTimeout: time.Hour})
	alice, bob := bearer(aliceToken), bearer(bobToken)
	_, _, aliceID := handshake(t, addr, alice)
	_, _, bobID := handshake(t, addr, bob)
	post := func(id string, header map[string]string, size int) (int, string) {
		status, body, got := doTo(t, http.MethodPost, "http://"+addr+"/mcp", padded(size), with(header, "Mcp-Session-Id", id))
		if status == http.StatusServiceUnavailable && got.Get("Retry-After") == "" {
			t.Error("nothing says when to try again")
		}
		return status, body
	}
	finish := l.stall(t, aliceID, aliceToken, padded(15*mib), 14*mib)
	for _, c := range []struct {
		who    string
		id     string
		header map[string]string
		size   int
		want   int
	}{
		{"the owner, beyond its part of 16 MiB", aliceID, alice, 3 * mib, http.StatusServiceUnavailable},
		{"another owner, within the budget", bobID, bob, 3 * mib, http.StatusOK},
		{"another owner, beyond the budget", bobID, bob, 7 * mib, http.StatusServiceUnavailable},
		{"the owner, with little", aliceID, alice, 100, http.StatusOK},
	} {
		status, body := post(c.id, c.header, c.size)
		if status != c.want || status == http.StatusServiceUnavailable && !strings.Contains(body, "too many bytes") {
			t.Errorf("%s: %d %s", c.who, status, body)
		}
	}
	if line := finish(); line != "HTTP/1.1 200 OK" {
		t.Errorf("the message that was under way: %q", line)
	}
	until(t, "there is room again", func() bool {
		status, _ := post(aliceID, alice, 3*mib)
		return status == http.StatusOK
	})
}

// R6: all loopback addresses are one client.
func TestR6LoopbackIsOneClient(t *testing.T) {
	t.Parallel()
	addr := inProcess(t, &mcpserver.HTTPOptions{MaxOwnerSessions: 1})
	if status, body, _ := handshake(t, addr, nil); status != http.StatusOK {
		t.Fatalf("the first session: %d %s", status, body)
	}
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: dialer.DialContext}}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/mcp", strings.NewReader(initializeBody))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close() // only the status matters
	if res.StatusCode != http.StatusTooManyRequests {
		t.Errorf("from another loopback address: %d", res.StatusCode)
	}
}

// R6: what many connections and streams of events took is given back, also after resets.
func TestR6FilesReturn(t *testing.T) {
	t.Parallel()
	s := startHTTP(t, "--max-rate", "10000")
	handshake(t, s.addr, nil)
	files := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	const streams, conns = 40, 300
	before := files()
	var held []net.Conn
	for i := range streams + conns {
		request := "POST /mcp HTTP/1.1\r\nHost: " + s.addr + "\r\nContent-Length: 100\r\n\r\n{"
		if i < streams {
			_, _, id := handshake(t, s.addr, nil)
			request = "GET /mcp HTTP/1.1\r\nHost: " + s.addr + "\r\nAccept: text/event-stream\r\nMcp-Session-Id: " + id + "\r\n\r\n"
		}
		conn, err := net.Dial("tcp", s.addr)
		if err != nil {
			t.Fatal(err)
		}
		held = append(held, conn)
		_, _ = io.WriteString(conn, request) // it may be one too many
	}
	until(t, "the server has them", func() bool { return files() >= before+streams })
	for i, conn := range held {
		if tcp, ok := conn.(*net.TCPConn); ok && i%2 == 0 {
			_ = tcp.SetLinger(0) // ends with a reset
		}
		conn.Close()
	}
	until(t, "the server has let them go", func() bool { return files() <= before+8 }) // it may talk to the engine meanwhile
}
