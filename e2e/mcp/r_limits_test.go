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

	"github.com/workcell-dev/workcell/mcpserver"
)

// twoOwners returns the tokens of two owners.
func twoOwners() []mcpserver.Token {
	return []mcpserver.Token{{Name: "alice", Secret: aliceToken}, {Name: "bob", Secret: bobToken}}
}

// handshake starts a session without further use.
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

// TestR6SessionsOfOneOwner verifies R6: the sessions of one owner are limited, even if it starts many at once, and
// other owners keep their own limit.
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
			case status != http.StatusTooManyRequests || !strings.Contains(body, "the limit per client is 3"):
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
	if status, body, _ := handshake(t, addr, bob); status != http.StatusServiceUnavailable || !strings.Contains(body, "the limit for all clients is 5") {
		t.Errorf("a full server: %d %s", status, body)
	}
	if status, _, _ := doTo(t, http.MethodDelete, "http://"+addr+"/mcp", "", with(alice, "Mcp-Session-Id", <-ids)); status != http.StatusNoContent {
		t.Errorf("delete: %d", status)
	}
	eventually(t, "the place of an ended session is free", func() bool {
		status, _, _ := handshake(t, addr, alice)
		return status == http.StatusOK
	})
}

// TestR6Streams verifies R6: a session has one event stream, which does not count as a request, to allow further calls
// of the client.
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
		t.Errorf("a call during the stream: %d", status)
	}
	end()
	eventually(t, "the place of a stream that ended is free", func() bool {
		status, _, end := get()
		end()
		return status == http.StatusOK
	})
}

// openStream requests a session's event stream and returns the beginning of the answer. The stream stays open until end
// is called or the test ends.
func openStream(t *testing.T, addr string, header map[string]string) (status int, start string, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	res, err := oneConnection(nil).Do(newRequest(t, ctx, http.MethodGet, "http://"+addr+"/mcp", "", header))
	must(t, err)
	t.Cleanup(func() { res.Body.Close() })
	line, err := bufio.NewReader(res.Body).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return res.StatusCode, line, cancel
}

// TestR2BodiesTogether verifies R2: the bodies of requests share a memory budget.
func TestR2BodiesTogether(t *testing.T) {
	t.Parallel()
	addr := inProcess(t, &mcpserver.HTTPOptions{MaxBodyBytes: 1 << 20})
	padded := initializeBody + strings.Repeat(" ", 2<<20)
	status, body, got := doTo(t, http.MethodPost, "http://"+addr+"/mcp", padded, nil)
	if status != http.StatusServiceUnavailable || !strings.Contains(body, "too many bytes") || got.Get("Retry-After") == "" {
		t.Errorf("beyond the budget: %d %s %v", status, body, got)
	}
	if status, body, _ := handshake(t, addr, nil); status != http.StatusOK {
		t.Errorf("afterwards: %d %s", status, body)
	}
}

// TestR6FilesReturn verifies R6: connections are limited, and the resources of many connections and event streams are
// freed, even after resets.
func TestR6FilesReturn(t *testing.T) {
	t.Parallel()
	const streams, conns, most = 40, 300, 100
	s := startHTTP(t, "--max-rate", "10000", "--max-connections", fmt.Sprint(most))
	handshake(t, s.addr, nil)
	files := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
		must(t, err)
		return len(entries)
	}
	const slack = 8 // for connections to the engine in the meantime
	before := files()
	var held []net.Conn
	for i := range streams + conns {
		request := "POST /mcp HTTP/1.1\r\nHost: " + s.addr + "\r\nContent-Length: 100\r\n\r\n{"
		if i < streams {
			_, _, id := handshake(t, s.addr, nil)
			request = "GET /mcp HTTP/1.1\r\nHost: " + s.addr + "\r\nAccept: text/event-stream\r\nMcp-Session-Id: " + id + "\r\n\r\n"
		}
		conn, err := net.Dial("tcp", s.addr)
		must(t, err)
		held = append(held, conn)
		_, _ = io.WriteString(conn, request) // it may exceed the limit
	}
	eventually(t, "the server has as many as it takes", func() bool { return files() >= before+most-slack })
	if n := files(); n > before+most+slack {
		t.Errorf("%d files more than before, where %d connections are allowed", n-before, most)
	}
	for i, conn := range held {
		if tcp, ok := conn.(*net.TCPConn); ok && i%2 == 0 {
			_ = tcp.SetLinger(0) // close with a reset
		}
		conn.Close()
	}
	eventually(t, "the server has let them go", func() bool { return files() <= before+slack })
}
