package mcp_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/buffertest"
)

// httpServer is the real command on HTTP.
type httpServer struct {
	t      *testing.T
	addr   string
	state  string
	cmd    *exec.Cmd
	stderr *buffertest.Buffer
	exited chan struct{} // closed when the server has exited
}

// startHTTP starts the command on a free port of the loopback address. At the end of the test, it stops the server like
// an operator would, and checks for leftover processes and sandboxes.
func startHTTP(t *testing.T, args ...string) *httpServer {
	t.Helper()
	s := startServer(t, nil, append([]string{"--listen", "127.0.0.1:0"}, args...)...)
	t.Cleanup(func() {
		s.signal(syscall.SIGTERM)
		if code := s.cmd.ProcessState.ExitCode(); code != 0 { // for a supervisor, SIGTERM is the regular end of a server
			t.Errorf("exit code %d", code)
		}
		if left := containers(t, instance(t, s.state)); left != "" {
			t.Errorf("sandboxes are left: %s", left)
		}
	})
	return s
}

// startServer starts the command with additional variables, and stops it at the end of the test.
func startServer(t *testing.T, env []string, args ...string) *httpServer {
	t.Helper()
	cmd, state := command(t, append([]string{"--transport", "http"}, args...)...)
	cmd.Env = append(cmd.Env, env...)
	s := &httpServer{t: t, state: state, cmd: cmd, stderr: &buffertest.Buffer{}, exited: make(chan struct{})}
	cmd.Stderr = s.stderr
	must(t, cmd.Start())
	go func() { _ = cmd.Wait(); close(s.exited) }()
	t.Cleanup(func() {
		s.signal(syscall.SIGTERM)
		if t.Failed() {
			t.Logf("standard error of %s:\n%s", s.addr, s.stderr.String())
		}
	})
	s.awaitListening()
	return s
}

// signal sends a signal to a server and waits until it has exited.
func (s *httpServer) signal(sig syscall.Signal) {
	s.t.Helper()
	_ = s.cmd.Process.Signal(sig) // it may have exited already
	select {
	case <-s.exited:
	case <-time.After(patience):
		_ = s.cmd.Process.Kill() // the test has failed
		s.t.Fatal("the server does not end")
	}
}

// awaitListening waits until the server prints the listen address.
func (s *httpServer) awaitListening() {
	s.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if _, rest, ok := strings.Cut(s.stderr.String(), "serving MCP on http"); ok && strings.Contains(rest, "/mcp\n") {
			_, rest, _ = strings.Cut(rest, "://") // http or https
			s.addr, _, _ = strings.Cut(rest, "/")
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the server does not begin:\n%s", s.stderr.String())
		}
	}
}

func (s *httpServer) url() string { return "http://" + s.addr + "/mcp" }

// do sends a request with the headers that clients send, overridden by header.
func (s *httpServer) do(method, body string, header map[string]string) (status int, answer string, got http.Header) {
	s.t.Helper()
	return doTo(s.t, method, s.url(), body, header)
}

func doTo(t *testing.T, method, url, body string, header map[string]string) (status int, answer string, got http.Header) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	res, err := oneConnection(nil).Do(newRequest(t, ctx, method, url, body, header))
	if err != nil {
		t.Fatalf("%s: %v", method, err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	must(t, err)
	return res.StatusCode, string(raw), res.Header
}

// newRequest returns a request with the headers that clients send, overridden by header.
func newRequest(t *testing.T, ctx context.Context, method, url, body string, header map[string]string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	must(t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	for k, v := range header {
		switch {
		case k == "Host":
			req.Host = v
		case v == "":
			req.Header.Del(k)
		default:
			req.Header.Set(k, v)
		}
	}
	return req
}

// oneConnection returns a client with a new connection for each request.
func oneConnection(cfg *tls.Config) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: cfg}}
}

const initializeBody = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"1"}}}`

// begin starts a session and returns the id.
func (s *httpServer) begin(header map[string]string) string {
	s.t.Helper()
	status, body, got := s.do(http.MethodPost, initializeBody, header)
	id := got.Get("Mcp-Session-Id")
	if status != http.StatusOK || id == "" {
		s.t.Fatalf("initialize: %d %s", status, body)
	}
	h := with(header, "Mcp-Session-Id", id)
	if status, body, _ := s.do(http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/initialized"}`, h); status != http.StatusAccepted {
		s.t.Fatalf("initialized: %d %s", status, body)
	}
	return id
}

func with(header map[string]string, more ...string) map[string]string {
	out := map[string]string{}
	for k, v := range header {
		out[k] = v
	}
	for i := 0; i < len(more); i += 2 {
		out[more[i]] = more[i+1]
	}
	return out
}

func bearer(token string) map[string]string {
	return map[string]string{"Authorization": "Bearer " + token}
}

// connect connects an SDK client.
func (s *httpServer) connect(token string) *mcp.ClientSession {
	s.t.Helper()
	return connect(s.t, s.url(), token, nil)
}

// connect connects an SDK client to an endpoint, until the end of the test.
func connect(t *testing.T, endpoint, token string, o *mcp.ClientSessionOptions) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	transport := &mcp.StreamableClientTransport{Endpoint: endpoint, HTTPClient: &http.Client{Transport: rig.Bearer{Token: token}}}
	cs, err := client.Connect(t.Context(), transport, o)
	must(t, err)
	t.Cleanup(func() { _ = cs.Close() }) // the server ends too
	return cs
}

// raw sends unmodified bytes and returns the first line of the answer. It is empty if the server hangs up without an
// answer.
func (s *httpServer) raw(request string) string {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	must(s.t, err)
	defer conn.Close()
	must(s.t, conn.SetDeadline(time.Now().Add(patience)))
	if _, err := io.WriteString(conn, request); err != nil {
		return ""
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return ""
	}
	return strings.TrimSpace(line)
}

func tokenFile(t *testing.T, lines ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	must(t, os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o600))
	return path
}

// usage runs the command with invalid arguments.
func usage(t *testing.T, env []string, args ...string) (code int, stderr string) {
	t.Helper()
	cmd, _ := command(t, args...)
	cmd.Env = append(cmd.Env, env...)
	var out bytes.Buffer
	cmd.Stderr = &out
	if err := cmd.Run(); err == nil {
		t.Fatalf("%q was accepted", args)
	}
	return cmd.ProcessState.ExitCode(), out.String()
}
