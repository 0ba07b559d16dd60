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

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
	"github.com/workcell-dev/workcell/session/record/postgres"
)

// replicas are servers with a shared database, and a plain load balancer in front of them. It does not know MCP, passes
// requests to ready servers in turn, and tries the next server if one does not accept the connection.
type replicas struct {
	t        *testing.T
	database string
	args     []string
	proxy    *httptest.Server

	mu      sync.Mutex // guards the fields below
	servers []*httpServer
	turn    int
}

// startReplicas starts n servers. At the end of the test, they must have left nothing.
func startReplicas(t *testing.T, n int, args ...string) *replicas {
	t.Helper()
	r := &replicas{t: t, database: pgtest.Database(t), args: args}
	r.proxy = httptest.NewServer(&httputil.ReverseProxy{
		Rewrite: func(p *httputil.ProxyRequest) {
			p.SetURL(&url.URL{Scheme: "http", Host: "127.0.0.1:1"}) // the transport selects the server
			p.Out.Host = "127.0.0.1"
		},
		Transport:     &http.Transport{DialContext: r.dial, DisableKeepAlives: true, DisableCompression: true},
		FlushInterval: -1,
	})
	t.Cleanup(r.proxy.Close)
	t.Cleanup(func() {
		if left := containers(t, r.instance()); left != "" {
			t.Errorf("sandboxes are left: %s", left)
		}
	})
	for range n {
		r.servers = append(r.servers, r.start("127.0.0.1:0"))
	}
	return r
}

// dial connects to the server whose turn it is, or to the next server that accepts the connection.
func (r *replicas) dial(ctx context.Context, network, _ string) (conn net.Conn, err error) {
	r.mu.Lock()
	var addrs []string
	for i := range r.servers {
		if s := r.servers[(r.turn+i)%len(r.servers)]; s != nil {
			addrs = append(addrs, s.addr)
		}
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

// start starts a server and stops it at the end of the test.
func (r *replicas) start(listen string) *httpServer {
	r.t.Helper()
	return startServer(r.t, []string{"WORKCELL_STATE=" + r.database}, append([]string{"--listen", listen}, r.args...)...)
}

// restart kills a server and starts a new server with the same address.
func (r *replicas) restart(i int) {
	r.t.Helper()
	old := r.servers[i]
	old.signal(syscall.SIGKILL)
	put := func(s *httpServer) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.servers[i] = s
	}
	put(nil) // until it is ready
	put(r.start(old.addr))
}

// instance returns the instance of the servers' sandboxes.
func (r *replicas) instance() string {
	r.t.Helper()
	store, err := postgres.Open(context.Background(), r.database)
	must(r.t, err)
	defer store.Close() //nolint:errcheck // only read from
	id, err := store.Instance(context.Background())
	if err != nil || id == "" {
		r.t.Fatalf("instance %q: %v", id, err)
	}
	return id
}

// connect connects an SDK client to all servers, as the owner of a token.
func (r *replicas) connect(token string) *mcp.ClientSession {
	r.t.Helper()
	return connect(r.t, r.proxy.URL+"/mcp", token, &mcp.ClientSessionOptions{ProtocolVersion: "2026-07-28"})
}

// args returns the arguments of a call in a sandbox.
func args(sandbox string, more ...string) map[string]any {
	args := map[string]any{"sandbox_id": sandbox}
	for i := 0; i < len(more); i += 2 {
		args[more[i]] = more[i+1]
	}
	return args
}

// TestReplicasShareSandboxes: consecutive requests of a client reach different servers and find the same sandboxes,
// files, and commands. Another owner finds none of them.
func TestReplicasShareSandboxes(t *testing.T) {
	t.Parallel()
	r := startReplicas(t, 3, "--token-file", tokenFile(t, "alice "+aliceToken, "bob "+bobToken))
	alice, bob := r.connect(aliceToken), r.connect(bobToken)
	box := field(t, callTool(t, alice, "sandbox_open", nil), "sandbox_id")
	callTool(t, alice, "sandbox_fs_write", args(box, "path", "note", "contents", "kept"))
	for range r.servers {
		read := callTool(t, alice, "sandbox_exec", args(box, "command", "cat note"))
		if got := field(t, read, "stdout"); got != "kept" {
			t.Errorf("the file has %q", got)
		}
		if got := text(t, callTool(t, bob, "sandbox_exec", args(box, "command", "true"))); !strings.Contains(got, "not_found") {
			t.Errorf("another's sandbox: %s", got)
		}
	}
	start := args(box, "command", "read x; echo got $x; sleep 1000")
	start["stream"] = true
	exec := field(t, callTool(t, alice, "sandbox_exec", start), "exec_id")
	callTool(t, alice, "sandbox_exec_write", args(box, "exec_id", exec, "text", "word\n"))
	eventually(t, "one server reads what another wrote", func() bool {
		res := callTool(t, alice, "sandbox_exec_read", args(box, "exec_id", exec))
		return strings.Contains(text(t, res), "got word")
	})
	callTool(t, alice, "sandbox_exec_kill", args(box, "exec_id", exec))
	named := map[string]any{"session_key": "second"}
	second := field(t, callTool(t, alice, "sandbox_open", named), "sandbox_id")
	if got := field(t, callTool(t, alice, "sandbox_open", named), "sandbox_id"); got != second {
		t.Errorf("one server opened %s, the next %s", second, got)
	}
	for _, id := range []string{second, box} {
		callTool(t, alice, "sandbox_close", map[string]any{"sandbox_id": id, "delete_workspace": true})
		eventually(t, "the sandbox is gone everywhere", func() bool {
			return !strings.Contains(text(t, callTool(t, alice, "session_status", nil)), id)
		})
	}
}

// TestReplicasKilled verifies a client while each server is killed and restarted. A call fails only if the client's
// server is killed. Files and sandboxes stay the same until the end, and then nothing is left.
func TestReplicasKilled(t *testing.T) {
	t.Parallel()
	r := startReplicas(t, 3, "--token-file", tokenFile(t, "alice "+aliceToken))
	cs := r.connect(aliceToken)
	box := field(t, callTool(t, cs, "sandbox_open", nil), "sandbox_id")
	callTool(t, cs, "sandbox_fs_write", args(box, "path", "log", "contents", ""))
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
			call := args(box, "command", fmt.Sprintf("echo %d >> log; wc -l < log", n))
			res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: "sandbox_exec", Arguments: call})
			switch {
			case err != nil:
				lost++
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
			eventually(t, "the client works", func() bool { return progress.Load() > done+5 })
			r.restart(i)
			kills++
		}
	}
	close(stop)
	working.Wait()
	if lines == 0 || lost > kills {
		t.Errorf("%d calls done, %d lost in %d kills", lines, lost, kills)
	}
	got := strings.TrimSpace(field(t, callTool(t, cs, "sandbox_exec", args(box, "command", "wc -l < log")), "stdout"))
	var there int
	if _, err := fmt.Sscan(got, &there); err != nil || there < lines || there > lines+lost {
		t.Errorf("%s lines in the file, %d calls done, %d lost", got, lines, lost)
	}
	callTool(t, cs, "sandbox_close", map[string]any{"sandbox_id": box, "delete_workspace": true})
	if err := cs.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}
