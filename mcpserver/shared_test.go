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

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
	"github.com/workcell-dev/workcell/mcpserver"
	"github.com/workcell-dev/workcell/mcpserver/pgregistry"
	"github.com/workcell-dev/workcell/session"
)

// connectByTurns starts several servers that share their clients, and connects the SDK's client so that each request, answers
// included, comes to another server than the one before.
func connectByTurns(t *testing.T, version string, opts *mcp.ClientOptions, options func(*session.Manager) *mcpserver.Options) *mcp.ClientSession {
	t.Helper()
	database, store, instance := pgtest.Database(t), session.NewMemoryStore(), session.NewID()
	engine, err := memory.New(nil) // what is shown here is no engine's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after all managers
		left, err := engine.List(context.Background(), backend.Filter{Instance: instance})
		if err := errors.Join(err, engine.Close()); err != nil || len(left) != 0 {
			t.Errorf("sandboxes are left: %v, %v", left, err)
		}
	})
	var hosts []string
	for range 2 {
		registry, err := pgregistry.Open(t.Context(), database)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(registry.Close)
		m, err := session.NewManager(engine, &session.Options{Instance: instance, Store: store, Join: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := m.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
		o := options(m)
		o.Replicas = registry
		u, err := url.Parse(serveHTTP(t, newServer(t, m, o)))
		if err != nil {
			t.Fatal(err)
		}
		hosts = append(hosts, u.Host)
	}
	var turn atomic.Int64
	transport := &mcp.StreamableClientTransport{
		Endpoint: "http://" + hosts[0] + mcpserver.PathMCP, DisableStandaloneSSE: true,
		HTTPClient: &http.Client{Transport: byTurns(func(r *http.Request) (*http.Response, error) {
			r = r.Clone(r.Context())
			r.URL.Host = hosts[int(turn.Add(1))%len(hosts)]
			r.Host = r.URL.Host
			return http.DefaultTransport.RoundTrip(r)
		})},
	}
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts).Connect(t.Context(), transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cs.Close() }) // ends the session, if its wire has them
	return cs
}

type byTurns func(*http.Request) (*http.Response, error)

// RoundTrip sends a request.
func (f byTurns) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// noteTask adds its input to a file of the sandbox of its run, and returns what that says then.
func noteTask(m *session.Manager) func(context.Context, mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
	return func(ctx context.Context, req mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
		run, _ := session.RunFromContext(ctx)
		base, _ := session.BaseFromContext(ctx)
		s, _, err := m.Open(ctx, run.Key(session.DefaultName), session.Request{Image: pythonImage}.WithDefaults(base))
		if err != nil {
			return mcpserver.TaskResult{}, err
		}
		text, _, err := s.ReadFileBytes(ctx, "log", session.ReadFileOptions{})
		if err != nil && !errors.Is(err, backend.ErrNotFound) {
			return mcpserver.TaskResult{}, err
		}
		text = append(text, req.Text...)
		_, err = s.WriteFile(ctx, "log", bytes.NewReader(text), session.WriteFileOptions{Overwrite: true})
		return mcpserver.TaskResult{Outcome: "succeeded", Text: string(text)}, err
	}
}

// Sessions of execute_task are the same at every server: their sandboxes, their files, and their end.
func TestSharedTasks(t *testing.T) {
	t.Parallel()
	cs := connectByTurns(t, "2025-11-25", nil, func(m *session.Manager) *mcpserver.Options {
		return &mcpserver.Options{Tasks: []mcpserver.Task{{Name: "note", Kind: "agent"}}, RunTask: noteTask(m)}
	})
	for i := range 3 {
		res := must(t, cs, "execute_task", map[string]any{"task": "note", "input": fmt.Sprint(i), "session_id": "work"})
		if want := "012"[:i+1]; res.text("text") != want {
			t.Errorf("task %d: %q, want %q", i, res.text("text"), want)
		}
	}
	for range 2 {
		res := must(t, cs, "get_files", map[string]any{"session_id": "work", "format": "zip"})
		raw, err := base64.StdEncoding.DecodeString(res.text("zip_b64"))
		if err != nil {
			t.Fatal(err)
		}
		z, err := zip.NewReader(bytes.NewReader(raw), int64(len(raw)))
		if err != nil || len(z.File) != 1 || z.File[0].Name != "log" {
			t.Errorf("files: %+v, %v", z, err)
		}
		if code, _ := do(t, cs, "get_files", map[string]any{"session_id": "work", "format": "patch"}).failure(); code != "unavailable" {
			t.Errorf("a patch of what began somewhere: %s", code)
		}
	}
	must(t, cs, "cleanup_session", map[string]any{"session_id": "work"})
	for range 2 {
		if code, _ := do(t, cs, "session_status", map[string]any{"session_id": "work"}).failure(); code != "not_found" {
			t.Errorf("after its end: %s", code)
		}
	}
	if res := must(t, cs, "execute_task", map[string]any{"task": "note", "input": "x", "session_id": "work"}); res.text("text") != "x" {
		t.Errorf("the same name again has %q", res.text("text"))
	}
}

// A question goes to the client of a call, and the answer, which comes to another server, to who asked.
func TestSharedApproval(t *testing.T) {
	t.Parallel()
	asked := 0
	cs := connectByTurns(t, "2025-11-25", &mcp.ClientOptions{
		ElicitationHandler: func(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			asked++
			return &mcp.ElicitResult{Action: "accept", Content: map[string]any{"allow": strings.Contains(req.Params.Message, "good")}}, nil
		},
	}, func(*session.Manager) *mcpserver.Options {
		return &mcpserver.Options{
			Tasks: []mcpserver.Task{{Name: "desk", Kind: "agent"}},
			RunTask: func(ctx context.Context, req mcpserver.TaskRequest) (mcpserver.TaskResult, error) {
				by := hosttools.ApproverFromContext(ctx)
				if by == nil {
					return mcpserver.TaskResult{Text: "nobody"}, nil
				}
				d, err := by.Approve(ctx, hosttools.ApprovalRequest{Server: "orders", Tool: req.Text, Args: []byte(`{}`), Caller: hosttools.Caller{Agent: "desk"}})
				return mcpserver.TaskResult{Text: fmt.Sprint(d.Allow)}, err
			},
		}
	})
	for i, tool := range []string{"good", "bad", "good", "bad"} {
		if got := do(t, cs, "execute_task", map[string]any{"task": "desk", "input": tool}).text("text"); got != fmt.Sprint(tool == "good") || asked != i+1 {
			t.Errorf("%s: %s, asked %d times", tool, got, asked)
		}
	}
}
