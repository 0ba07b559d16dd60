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
	"syscall"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/mcpserver"
	"github.com/workcell-dev/workcell/session"
)

// inProcess starts a server in this process with the limits of a test, and returns the address.
func inProcess(t *testing.T, opts *mcpserver.HTTPOptions) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	b, err := docker.New(t.Context(), &docker.Options{Host: os.Getenv("DOCKER_HOST")})
	must(t, err)
	m, err := session.NewManager(b, nil)
	must(t, err)
	s, err := mcpserver.New(m, nil)
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.ServeHTTP(ctx, l, opts) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil && !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serving: %v", err)
		}
		for _, end := range []func(context.Context) error{s.Close, m.Close, func(context.Context) error { return b.Close() }} {
			if err := end(context.Background()); err != nil {
				t.Error(err)
			}
		}
	})
	return l.Addr().String()
}

// TestR5SlowClients verifies R5: clients that send slowly or do not read are disconnected, and other clients are served
// in the meantime.
func TestR5SlowClients(t *testing.T) {
	t.Parallel()
	addr := inProcess(t, &mcpserver.HTTPOptions{BodyTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second})
	slow := map[string]string{
		"body":   "POST /mcp HTTP/1.1\r\nHost: " + addr + "\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{",
		"header": "POST /mcp HTTP/1.1\r\nHost: " + addr + "\r\nX-Slow: ",
		"line":   "POS",
	}
	var wg sync.WaitGroup
	for name, begin := range slow {
		for range 5 {
			wg.Go(func() {
				if err := drip(addr, begin); err != nil {
					t.Errorf("slow %s: %v", name, err)
				}
			})
		}
	}
	wg.Go(func() {
		if err := neverRead(addr); err != nil {
			t.Errorf("never reading: %v", err)
		}
	})
	for range 50 {
		if status, _, _ := doTo(t, http.MethodGet, "http://"+addr+"/healthz", "", nil); status != http.StatusOK {
			t.Errorf("health: %d", status)
		}
		if status, body, _ := doTo(t, http.MethodPost, "http://"+addr+"/mcp", initializeBody, nil); status != http.StatusOK {
			t.Errorf("initialize: %d %s", status, body)
		}
	}
	wg.Wait()
}

// drip sends a byte periodically. The server must disconnect it.
func drip(addr, begin string) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, begin); err != nil {
		return err
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = io.Copy(io.Discard, conn) // ends with the connection
	}()
	deadline := time.After(patience)
	for {
		select {
		case <-gone:
			return nil
		case <-deadline:
			return errors.New("still connected")
		case <-time.After(200 * time.Millisecond):
			_, _ = io.WriteString(conn, "x") // the server may just have disconnected
		}
	}
}

// neverRead sends large requests and reads no answers. The server must disconnect it.
func neverRead(addr string) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return fmt.Errorf("a connection of type %T", conn)
	}
	if err := tcp.SetReadBuffer(4096); err != nil {
		return err
	}
	list := `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}`
	request := fmt.Sprintf("POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nAccept: application/json, text/event-stream\r\n"+
		"Mcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/list\r\nContent-Length: %d\r\n\r\n%s", addr, len(list), list)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		if err := conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			return err
		}
		_, err := io.WriteString(conn, request)
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			return nil
		}
		return err
	}
	return errors.New("still connected")
}

// TestR6RequestsAtOnce verifies R6: the concurrent requests of a client are limited.
func TestR6RequestsAtOnce(t *testing.T) {
	t.Parallel()
	const allowed, sent = 10, 20
	addr := inProcess(t, &mcpserver.HTTPOptions{MaxRequests: allowed})
	answers := make(chan string, sent)
	for range sent {
		conn, err := net.Dial("tcp", addr)
		must(t, err)
		defer conn.Close()
		if _, err := io.WriteString(conn, "POST /mcp HTTP/1.1\r\nHost: "+addr+"\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
		go func() {
			line, _ := bufio.NewReader(conn).ReadString('\n') // empty if the connection is closed below
			answers <- strings.TrimSpace(line)
		}()
	}
	for range sent - allowed {
		select {
		case line := <-answers:
			if !strings.HasPrefix(line, "HTTP/1.1 429 ") {
				t.Errorf("answer %q", line)
			}
		case <-time.After(patience):
			t.Fatal("too many requests at once are not refused")
		}
	}
}

// TestRateLimit: a client with too many requests is refused temporarily, and other clients are not affected.
func TestRateLimit(t *testing.T) {
	t.Parallel()
	addr := inProcess(t, &mcpserver.HTTPOptions{Rate: 5, Tokens: []mcpserver.Token{{Name: "a", Secret: aliceToken}}})
	slowed := false
	for range 100 {
		status, _, header := doTo(t, http.MethodPost, "http://"+addr+"/mcp", initializeBody, bearer("guess-0123456789abcdef"))
		if status == http.StatusTooManyRequests && header.Get("Retry-After") != "" {
			slowed = true
			break
		}
		if status != http.StatusUnauthorized {
			t.Fatalf("status %d", status)
		}
	}
	if !slowed {
		t.Error("tokens can be guessed without a limit")
	}
	if status, _, _ := doTo(t, http.MethodGet, "http://"+addr+"/healthz", "", nil); status != http.StatusOK {
		t.Errorf("health: %d", status)
	}
}
