package mcp_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
	"github.com/workcell-dev/workcell/session/pgstore"
)

// replicas are servers that share a database, and a plain load balancer before them: it passes requests on by turns, knows nothing
// of MCP, and tries the next server when one does not take the connection.
type replicas struct {
	t        *testing.T
	database string
	args     []string
	proxy    *httptest.Server

	mu      sync.Mutex // guards the fields below
	servers []*httpServer
	turn    int
}

// startReplicas starts so many servers. At the end of the test nothing of them may be left.
func startReplicas(t *testing.T, n int, args ...string) *replicas {
	t.Helper()
	r := &replicas{t: t, database: pgtest.Database(t), args: args}
	r.proxy = httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: "127.0.0.1:1"}) // the transport chooses
			p.Out.Host = "127.0.0.1"
		},
		Transport:     &http.Transport{DialContext: r.dial, DisableKeepAlives: true, DisableCompression: true},
		FlushInterval: -1,
	})
	t.Cleanup(r.proxy.Close)
	t.Cleanup(func() {
		if left := r.containers(); left != "" {
			t.Errorf("sandboxes are left: %s", left)
		}
	})
	for range n {
		r.servers = append(r.servers, r.start("127.0.0.1:0"))
	}
	return r
}

// dial connects to the server whose turn it is, or to the next one that takes the connection.
func (r *replicas) dial(ctx context.Context, network, _ string) (conn net.Conn, err error) {
	r.mu.Lock()
	var addrs []string
	for i := range r.servers {
		addrs = append(addrs, r.servers[(r.turn+i)%len(r.servers)].addr)
	}
	r.turn++
	r.mu.Unlock()
	for _, addr := range addrs {
		if conn, err = (&net.Dialer{}).DialContext(ctx, network, addr); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// start starts a server, and ends it with the test.
func (r *replicas) start(listen string) *httpServer {
	r.t.Helper()
	cmd, state := command(r.t, append([]string{"--transport", "http", "--listen", listen}, r.args...)...)
	cmd.Env = append(cmd.Env, "WORKCELL_STATE="+r.database)
	s := &httpServer{t: r.t, state: state, stderr: &buffertest.Buffer{}}
	cmd.Stderr = s.stderr
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	s.process = cmd.Process
	s.exited = make(chan struct{})
	go func() { _ = cmd.Wait(); close(s.exited) }()
	r.t.Cleanup(func() {
		s.signal(syscall.SIGTERM)
		if r.t.Failed() {
			r.t.Logf("standard error of %s:\n%s", s.addr, s.stderr.String())
		}
	})
	s.awaitListening()
	return s
}

// signal ends a server, and waits until it has ended.
func (s *httpServer) signal(sig syscall.Signal) {
	s.t.Helper()
	_ = s.process.Signal(sig) // it may have ended: then the wait is short
	select {
	case <-s.exited:
	case <-time.After(patience):
		_ = s.process.Kill() // its test has failed
		s.t.Error("the server does not end")
	}
}

// restart kills a server, and starts another one in its place.
func (r *replicas) restart(i int) {
	r.t.Helper()
	old := r.servers[i]
	old.signal(syscall.SIGKILL)
	s := r.start(old.addr)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.servers[i] = s
}

// containers returns what is left on the engine, after a while for what is about to go.
func (r *replicas) containers() (left string) {
	r.t.Helper()
	id := r.instance()
	for deadline := time.Now().Add(patience); ; time.Sleep(200 * time.Millisecond) {
		if left = listContainers(r.t, id); left == "" || time.Now().After(deadline) {
			return left
		}
	}
}

// instance returns the instance of the servers' sandboxes.
func (r *replicas) instance() string {
	r.t.Helper()
	store, err := pgstore.Open(context.Background(), r.database)
	if err != nil {
		r.t.Fatal(err)
	}
	defer store.Close() //nolint:errcheck // only read from
	id, err := store.Instance(context.Background())
	if err != nil || id == "" {
		r.t.Fatalf("instance %q: %v", id, err)
	}
	return id
}

// connect connects the SDK's client to whichever server it comes to, as alice.
func (r *replicas) connect(version string) *mcp.ClientSession {
	r.t.Helper()
	httpClient := &http.Client{Transport: roundTripper(func(req *http.Request) (*http.Response, error) {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+aliceToken)
		return http.DefaultTransport.RoundTrip(req)
	})}
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, nil)
	cs, err := client.Connect(r.t.Context(), &mcp.StreamableClientTransport{Endpoint: r.proxy.URL + "/mcp", HTTPClient: httpClient},
		&mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		r.t.Fatal(err)
	}
	if got := cs.InitializeResult().ProtocolVersion; got != version {
		r.t.Fatalf("the client speaks %s", got)
	}
	return cs
}

// caller calls tools in a session of the older wire, at any server.
type caller struct {
	t      *testing.T
	header map[string]string
	id     int
}

func (c *caller) tool(s *httpServer, name string, args map[string]any) toolResult {
	c.t.Helper()
	c.id++
	if args == nil {
		args = map[string]any{}
	}
	status, answer, _ := s.do(http.MethodPost, toolCall(c.id, "", name, args), c.header)
	if status != http.StatusOK {
		c.t.Fatalf("%s: %d %s", name, status, answer)
	}
	res := sseResult(c.t, answer)
	if res.IsError {
		c.t.Fatalf("%s: %s", name, answer)
	}
	return res
}

// A session that began at one server goes on at the others, with its sandboxes and commands; another owner gets the same answers
// everywhere, and when it is over it is over everywhere.
func TestReplicasServeOneSession(t *testing.T) {
	t.Parallel()
	r := startReplicas(t, 3, "--token-file", tokenFile(t, "alice "+aliceToken, "bob "+bobToken))
	a, b, c := r.servers[0], r.servers[1], r.servers[2]
	id := a.begin(bearer(aliceToken))
	alice := &caller{t: t, header: with(bearer(aliceToken), "Mcp-Session-Id", id, "Mcp-Protocol-Version", "2025-11-25")}

	box := alice.tool(a, "sandbox_open", nil).text(t, "sandbox_id")
	alice.tool(b, "sandbox_fs_write", map[string]any{"path": "note", "contents": "from b"})
	if got := alice.tool(c, "sandbox_exec", map[string]any{"command": "cat note"}).text(t, "stdout"); got != "from b" {
		t.Errorf("c reads %q", got)
	}
	if got := alice.tool(b, "sandbox_open", nil).text(t, "sandbox_id"); got != box {
		t.Errorf("b opened %s, a %s", got, box)
	}
	// A command that one server started is another's to follow, feed and end.
	exec := alice.tool(b, "sandbox_exec", map[string]any{"command": "read x; echo got $x; sleep 1000", "stream": true}).text(t, "exec_id")
	alice.tool(c, "sandbox_exec_write", map[string]any{"exec_id": exec, "text": "word\n"})
	until(t, "a reads what c wrote", func() bool {
		res := alice.tool(a, "sandbox_exec_read", map[string]any{"exec_id": exec})
		return strings.Contains(string(res.Structured["chunks"]), "got word")
	})
	alice.tool(a, "sandbox_exec_kill", map[string]any{"exec_id": exec})
	// A second one, opened elsewhere, is known everywhere: a call must say which it means.
	second := alice.tool(c, "sandbox_open", map[string]any{"session_key": "second"}).text(t, "sandbox_id")
	if got := alice.tool(b, "sandbox_open", map[string]any{"session_key": "second"}).text(t, "sandbox_id"); got != second {
		t.Errorf("b opened %s, c %s", got, second)
	}
	_, answer, _ := a.do(http.MethodPost, toolCall(1000, "", "sandbox_exec", map[string]any{"command": "true"}), alice.header)
	if res := sseResult(t, answer); res.errorCode() != "invalid_argument" || !strings.Contains(answer, second) || !strings.Contains(answer, box) {
		t.Errorf("a does not ask which sandbox is meant: %s", answer)
	}
	if got := alice.tool(a, "sandbox_exec", map[string]any{"sandbox_id": second, "command": "pwd"}).text(t, "stdout"); got != "/workspace\n" {
		t.Errorf("a in the sandbox of c: %q", got)
	}
	list := string(alice.tool(b, "session_status", nil).Structured["sessions"])
	if !strings.Contains(list, box) || !strings.Contains(list, second) {
		t.Errorf("b lists %s", list)
	}
	alice.tool(b, "sandbox_close", map[string]any{"sandbox_id": second, "delete_workspace": true})
	until(t, "the sandbox that b closed is gone", func() bool {
		return !strings.Contains(string(alice.tool(c, "session_status", nil).Structured["sessions"]), second)
	})

	// The same refusals everywhere.
	const ping = `{"jsonrpc":"2.0","id":2,"method":"ping"}`
	for i, s := range r.servers {
		for _, method := range []string{http.MethodPost, http.MethodGet, http.MethodDelete} {
			if status, _, _ := s.do(method, ping, with(bearer(bobToken), "Mcp-Session-Id", id)); status != http.StatusForbidden {
				t.Errorf("%d: %s in another's session: %d", i, method, status)
			}
			if status, _, _ := s.do(method, ping, with(bearer(aliceToken), "Mcp-Session-Id", "forged")); status != http.StatusNotFound {
				t.Errorf("%d: %s in a forged session: %d", i, method, status)
			}
		}
		for _, odd := range []string{"\xff", strings.Repeat("A", 10_000), "'", strings.ToLower(id)} {
			if status, _, _ := s.do(http.MethodPost, ping, with(bearer(aliceToken), "Mcp-Session-Id", odd)); status != http.StatusNotFound {
				t.Errorf("%d: ping in session %.10q: %d", i, odd, status)
			}
		}
		// A client cannot choose the id of its session.
		chosen := "chosen-by-the-client"
		if status, _, got := s.do(http.MethodPost, initializeBody, with(bearer(bobToken), "Mcp-Session-Id", chosen)); status != http.StatusNotFound || got.Get("Mcp-Session-Id") == chosen {
			t.Errorf("%d: initialize in a session of the client's choice: %d %v", i, status, got)
		}
		if status, answer, _ := s.do(http.MethodPost, initializeBody, alice.header); status == http.StatusOK && !strings.Contains(answer, "error") {
			t.Errorf("%d: a session began twice: %s", i, answer)
		}
		if status, _, _ := s.do(http.MethodPost, ping, with(alice.header, "Mcp-Protocol-Version", "1.0")); status != http.StatusBadRequest {
			t.Errorf("%d: an unknown version: %d", i, status)
		}
		other := toolCall(3, "", "sandbox_exec", map[string]any{"sandbox_id": box, "command": "true"})
		bob := with(bearer(bobToken), "Mcp-Session-Id", s.begin(bearer(bobToken)))
		if _, answer, _ := r.servers[(i+1)%3].do(http.MethodPost, other, bob); sseResult(t, answer).errorCode() != "not_found" {
			t.Errorf("%d: another's sandbox: %s", i, answer)
		}
		if status, _, _ := r.servers[(i+2)%3].do(http.MethodDelete, "", bob); status != http.StatusNoContent {
			t.Errorf("%d: delete: %d", i, status)
		}
		if status, _, _ := s.do(http.MethodPost, ping, bob); status != http.StatusNotFound {
			t.Errorf("%d: a session that another server ended: %d", i, status)
		}
	}
	if status, _, _ := b.do(http.MethodDelete, "", alice.header); status != http.StatusNoContent {
		t.Errorf("delete: %d", status)
	}
	for i, s := range r.servers {
		if status, _, _ := s.do(http.MethodPost, ping, alice.header); status != http.StatusNotFound {
			t.Errorf("%d: session after its end: %d", i, status)
		}
	}
}

// A call that runs at one server is cancelled by way of another.
func TestReplicasCancel(t *testing.T) {
	t.Parallel()
	r := startReplicas(t, 2)
	a, b := r.servers[0], r.servers[1]
	client := &caller{t: t, header: map[string]string{"Mcp-Session-Id": a.begin(nil)}}
	has := func(name string) bool {
		client.id++
		_, answer, _ := b.do(http.MethodPost, toolCall(client.id, "", "sandbox_fs_read", map[string]any{"path": name}), client.header)
		return !sseResult(t, answer).IsError
	}
	client.tool(a, "sandbox_open", nil)
	client.id = 10
	call := a.start(toolCall(2, "", "sandbox_exec", map[string]any{"command": waitsForGo, "yield_ms": 3_000_000}), client.header)
	until(t, "the command runs", func() bool { return has("on") })
	if status, answer, _ := b.do(http.MethodPost, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`, client.header); status != http.StatusAccepted {
		t.Errorf("cancelling: %d %s", status, answer)
	}
	until(t, "the cancelled command ends", func() bool {
		return strings.Contains(string(client.tool(b, "session_status", nil).Structured["sessions"]), `"running_commands":0`)
	})
	call.hangUp()
	call.wait(t)
	if has("well") {
		t.Error("the command ended by itself")
	}
	if status, _, _ := b.do(http.MethodDelete, "", client.header); status != http.StatusNoContent {
		t.Errorf("delete: %d", status)
	}
}

// Clients of both wires work on while one server after another is killed and started again: what was under way at one that is killed
// fails, and nothing else; files and sandboxes are the same to the end, and then nothing is left.
func TestReplicasKilled(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"2025-11-25", "2026-07-28"} {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			r := startReplicas(t, 3, "--token-file", tokenFile(t, "alice "+aliceToken))
			cs := r.connect(version)
			box := field(t, callTool(t, cs, "sandbox_open", nil), "sandbox_id")
			arg := func(more ...any) map[string]any {
				args := map[string]any{"sandbox_id": box}
				for i := 0; i < len(more); i += 2 {
					args[fmt.Sprint(more[i])] = more[i+1]
				}
				return args
			}
			callTool(t, cs, "sandbox_fs_write", arg("path", "log", "contents", ""))
			stop, lines, lost := make(chan struct{}), 0, 0
			var progress atomic.Int64
			var working sync.WaitGroup
			working.Go(func() {
				for n := 0; ; n++ {
					select {
					case <-stop:
						return
					default:
					}
					res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "sandbox_exec", Arguments: arg("command", fmt.Sprintf("echo %d >> log; wc -l < log", n))})
					switch {
					case err != nil:
						lost++
						if strings.Contains(err.Error(), "session") && strings.Contains(err.Error(), "not found") {
							t.Errorf("call %d: the session is lost: %v", n, err)
							return
						}
					case res.IsError:
						t.Errorf("call %d: %s", n, text(t, res))
					default:
						lines++
					}
					progress.Add(1)
				}
			})
			kills := 0
			for range 2 {
				for i := range r.servers {
					done := progress.Load()
					until(t, "the client works", func() bool { return progress.Load() > done+5 })
					r.restart(i)
					kills++
				}
			}
			close(stop)
			working.Wait()
			if lines == 0 || lost > kills {
				t.Errorf("%d calls done, %d lost in %d kills", lines, lost, kills)
			}
			got := strings.TrimSpace(field(t, callTool(t, cs, "sandbox_exec", arg("command", "wc -l < log")), "stdout"))
			var there int
			if _, err := fmt.Sscan(got, &there); err != nil || there < lines || there > lines+lost {
				t.Errorf("%s lines in the file, %d calls done, %d lost", got, lines, lost)
			}
			t.Logf("%d calls done, %d lost in %d kills", lines, lost, kills)
			if version == "2025-11-25" { // on the other wire it is a new one each time
				if again := field(t, callTool(t, cs, "sandbox_open", nil), "sandbox_id"); again != box {
					t.Errorf("the session has another sandbox: %s, it was %s", again, box)
				}
			}
			callTool(t, cs, "sandbox_close", arg("delete_workspace", true))
			if err := cs.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}
