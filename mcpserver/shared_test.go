package mcpserver_test

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/mcpserver"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// connectByTurns starts several servers that share their clients. It connects an SDK client that sends consecutive
// requests to different servers.
func connectByTurns(
	t *testing.T, tokens []mcpserver.Token, store record.Store, egress sandbox.EgressGateway,
	options func(*session.Manager) *mcpserver.Options,
) *mcp.ClientSession {
	t.Helper()
	instance := record.NewID()
	engine, err := memory.New(nil) // the test does not depend on the engine
	checktest.Must(t, err)
	t.Cleanup(func() { // after all managers are closed
		left, err := engine.List(context.Background(), backend.Filter{Instance: instance})
		if err := errors.Join(err, engine.Close()); err != nil || len(left) != 0 {
			t.Errorf("sandboxes are left: %v, %v", left, err)
		}
	})
	var hosts []string
	for range 2 {
		m, err := session.NewManager(engine, &session.Options{Instance: instance, Store: store, Join: true, Egress: egress})
		checktest.Must(t, err)
		t.Cleanup(func() { checktest.Must(t, m.Close(context.Background())) })
		o := options(m)
		o.Shared = true
		u, err := url.Parse(serveHTTP(t, newServer(t, m, o), tokens...))
		checktest.Must(t, err)
		hosts = append(hosts, u.Host)
	}
	var turn atomic.Int64
	transport := &mcp.StreamableClientTransport{
		Endpoint: "http://" + hosts[0] + mcpserver.PathMCP, DisableStandaloneSSE: true,
		HTTPClient: &http.Client{Transport: byTurns(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.URL.Host = hosts[int(turn.Add(1))%len(hosts)]
			r.Host = r.URL.Host
			for _, token := range tokens {
				r.Header.Set("Authorization", "Bearer "+token.Secret)
			}
			return http.DefaultTransport.RoundTrip(r)
		})},
	}
	return client(t, transport, "2026-07-28", nil, ignored)
}

type byTurns func(*http.Request) (*http.Response, error)

// RoundTrip sends a request.
func (f byTurns) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// noteTask returns a task that appends its input to a file in its run's sandbox and returns the file's content.
func noteTask(m *session.Manager) func(context.Context, mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
	return func(ctx context.Context, req mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
		run, _ := session.RunFromContext(ctx)
		base, _ := session.BaseFromContext(ctx)
		s, _, err := m.Open(ctx, run.Key(record.DefaultName), session.Request{Image: pythonImage}.WithDefaults(base))
		if err != nil {
			return mcpserver.TaskResult{}, err
		}
		text, _, err := s.ReadFileBytes(ctx, "log", sandbox.ReadFileOptions{})
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			return mcpserver.TaskResult{}, err
		}
		text = append(text, req.Text...)
		_, err = s.WriteFile(ctx, "log", bytes.NewReader(text), sandbox.WriteFileOptions{Overwrite: true})
		return mcpserver.TaskResult{Outcome: "succeeded", Text: string(text)}, err
	}
}

// TestSharedTasks verifies that execute_task sessions have the same sandboxes and files on all servers. Any server can
// end a session. If client-chosen names are safe, the name can then be used again.
func TestSharedTasks(t *testing.T) {
	t.Parallel()
	alice := mcpserver.Token{Name: "alice", Secret: "0123456789abcdef0123456789abcdef"}
	for owner, tokens := range map[string][]mcpserver.Token{"": nil, "alice": {alice}} {
		cs := connectByTurns(t, tokens, record.NewMemoryStore(), nil, func(m *session.Manager) *mcpserver.Options {
			return &mcpserver.Options{Tasks: []mcpserver.Task{{Name: "note", Kind: "agent"}}, RunTask: noteTask(m)}
		})
		id := "new"
		if owner != "" {
			id = "work"
		}
		for i := range 3 {
			res := must(t, cs, "execute_task", map[string]any{"task": "note", "input": fmt.Sprint(i), "session_id": id})
			if want := "012"[:i+1]; res.text("text") != want {
				t.Errorf("%q: task %d: %q, want %q", owner, i, res.text("text"), want)
			}
			id = res.text("session_id")
		}
		for range 2 {
			res := must(t, cs, "get_files", map[string]any{"session_id": id, "format": "zip"})
			raw, err := base64.StdEncoding.DecodeString(res.text("zip_b64"))
			checktest.Must(t, err)
			z, err := zip.NewReader(bytes.NewReader(raw), int64(len(raw)))
			if err != nil || len(z.File) != 1 || z.File[0].Name != "log" {
				t.Errorf("%q: files: %+v, %v", owner, z, err)
			}
			patch := do(t, cs, "get_files", map[string]any{"session_id": id, "format": "patch"})
			if code, _ := patch.failure(); code != "unavailable" {
				t.Errorf("%q: a patch of what began somewhere: %s", owner, code)
			}
		}
		for range 2 {
			must(t, cs, "cleanup_session", map[string]any{"session_id": id})
			for range 2 {
				if code, _ := do(t, cs, "session_status", map[string]any{"session_id": id}).failure(); code != "not_found" {
					t.Errorf("%q: after its end: %s", owner, code)
				}
			}
			again := do(t, cs, "execute_task", map[string]any{"task": "note", "input": "x", "session_id": id})
			code, _ := again.failure()
			if owner == "" && code != "not_found" || owner != "" && again.text("text") != "x" {
				t.Errorf("%q: the same id again: %s, %q", owner, code, again.text("text"))
			}
			if owner == "" {
				break
			}
		}
	}
}

// TestSharedDeadSandbox verifies that every server finds the files of a session whose sandbox died, and removes them.
func TestSharedDeadSandbox(t *testing.T) {
	t.Parallel()
	for _, other := range []bool{false, true} { // than the server that opened it
		for _, read := range []bool{false, true} {
			store := record.NewMemoryStore()
			var m *session.Manager
			cs := connectByTurns(t, nil, store, nil, func(one *session.Manager) *mcpserver.Options {
				m = one
				return &mcpserver.Options{Tasks: []mcpserver.Task{{Name: "note", Kind: "agent"}}, RunTask: noteTask(one)}
			})
			opened := must(t, cs, "execute_task", map[string]any{"task": "note", "input": "x", "session_id": "new"})
			id := opened.text("session_id")
			recs, err := store.List(t.Context(), record.Ready)
			if err != nil || len(recs) != 1 {
				t.Fatalf("records %+v, %v", recs, err)
			}
			err = m.Backend().Remove(t.Context(), recs[0].EngineID, backend.RemoveOptions{})
			for rec := recs[0]; rec.Owner != "" && err == nil; time.Sleep(time.Millisecond) {
				rec, err = store.Get(t.Context(), rec.ID)
			}
			checktest.Must(t, err)
			if other {
				do(t, cs, "session_status", nil)
			}
			if read {
				if r := must(t, cs, "get_files", map[string]any{"session_id": id, "format": "zip"}); r.text("zip_b64") == "" {
					t.Errorf("by another server %v: no files: %v", other, r.fields)
				}
			}
			must(t, cs, "cleanup_session", map[string]any{"session_id": id})
			if there, err := m.Backend().HasWorkspace(t.Context(), m.Instance(), recs[0].ID); err != nil || there {
				t.Errorf("by another server %v, read before %v: files are left: %v, %v", other, read, there, err)
			}
		}
	}
}

// gateways counts how often a gateway is to serve the hosts of a sandbox.
type gateways struct{ atomic.Int64 }

// Open increments the count.
func (g *gateways) Open(string, sandbox.Egress) (sandbox.Service, func(), error) {
	g.Add(1)
	return sandbox.Service{}, func() {}, errors.ErrUnsupported
}

func (*gateways) Refused(string, time.Time) []sandbox.EgressRefusal { return nil }

// TestSharedHosts verifies that commands can connect to the hosts that their server allows, whichever server opened the
// sandbox.
func TestSharedHosts(t *testing.T) {
	t.Parallel()
	var g gateways
	store, servers := record.NewMemoryStore(), 0
	cs := connectByTurns(t, nil, store, &g, func(*session.Manager) *mcpserver.Options {
		var o mcpserver.Options
		if servers++; servers == 2 {
			o.Sandbox.Network.Allow = []string{"a.example"}
		}
		return &o
	})
	opened := do(t, cs, "sandbox_open", nil)
	if opened.IsError { // on the second server, because the engine serves no hosts
		opened = must(t, cs, "sandbox_open", nil)
	}
	recs, err := store.List(t.Context(), record.Ready)
	if err != nil || len(recs) != 1 {
		t.Fatalf("records %+v, %v", recs, err)
	}
	recs[0].Request = strings.Replace(recs[0].Request, "{", `{"egress":{"allow":["a.example"]},`, 1)
	checktest.Must(t, store.Update(t.Context(), recs[0]))
	g.Store(0)
	for range 4 { // two on each server
		do(t, cs, "sandbox_exec", map[string]any{"sandbox_id": opened.text("sandbox_id"), "command": "true"})
	}
	if n := g.Load(); n != 2 {
		t.Errorf("the gateways were asked %d times, want 2", n)
	}
}
