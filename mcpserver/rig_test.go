package mcpserver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/docker"
	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/mcpserver"
	"github.com/workcell-dev/workcell/session"
)

const pythonImage = "workcell/python:3.11"

// patience is the maximum wait on a loaded host.
const patience = 3 * time.Minute

// newManager returns a manager on the host's Docker Engine. It verifies at the end that no sandbox is left.
func newManager(t testing.TB) *session.Manager {
	t.Helper()
	return newManagerWith(t, nil)
}

func newManagerWith(t testing.TB, opts *session.Options) *session.Manager {
	t.Helper()
	b, err := docker.New(t.Context(), &docker.Options{Host: os.Getenv("DOCKER_HOST")})
	checktest.Must(t, err)
	return newManagerOn(t, b, opts)
}

// newMemoryManager is for tests that do not depend on the engine.
func newMemoryManager(t testing.TB) *session.Manager {
	t.Helper()
	b, err := memory.New(nil)
	checktest.Must(t, err)
	return newManagerOn(t, b, nil)
}

func newManagerOn(t testing.TB, b backend.SandboxBackend, opts *session.Options) *session.Manager {
	t.Helper()
	m, err := session.NewManager(b, opts)
	checktest.Must(t, err)
	t.Cleanup(func() {
		if err := m.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if n := sandboxes(t, m); n != 0 {
			t.Errorf("%d sandboxes are left", n)
		}
		checktest.Must(t, b.Close())
	})
	return m
}

// sandboxes returns the number of the manager's sandboxes on the engine.
func sandboxes(t testing.TB, m *session.Manager) int {
	t.Helper()
	list, err := m.Backend().List(context.Background(), backend.Filter{Instance: m.Instance()})
	checktest.Must(t, err)
	return len(list)
}

// newServer returns a server on m. Its sandboxes use the test image.
func newServer(t testing.TB, m *session.Manager, opts *mcpserver.Options) *mcpserver.Server {
	t.Helper()
	var o mcpserver.Options
	if opts != nil {
		o = *opts
	}
	o.Sandbox.Image = pythonImage
	s, err := mcpserver.New(m, &o)
	checktest.Must(t, err)
	t.Cleanup(func() { checktest.Must(t, s.Close(context.Background())) })
	return s
}

// connect connects an SDK client to the server in memory.
func connect(t testing.TB, s *mcpserver.Server, opts *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	return connectUnder(t, context.Background(), s, opts)
}

func connectUnder(t testing.TB, ctx context.Context, s *mcpserver.Server, opts *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	ours, theirs := mcp.NewInMemoryTransports()
	served := make(chan error, 1)
	go func() { served <- s.ServeOn(ctx, ours) }()
	return client(t, theirs, "", opts, func() error { return <-served })
}

// connectPipes connects an SDK client to ServeStdio over pipes.
func connectPipes(t testing.TB, s *mcpserver.Server, opts *mcp.ClientOptions) *mcp.ClientSession {
	t.Helper()
	toServer, fromClient := io.Pipe()
	toClient, fromServer := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- s.ServeStdio(context.Background(), toServer, fromServer)
		fromServer.Close() // the client sees the end of the stream
	}()
	return client(t, &mcp.IOTransport{Reader: toClient, Writer: fromClient}, "", opts, func() error {
		fromClient.Close()
		return <-served
	})
}

// serveHTTP serves s over HTTP until the end of the test and returns its URL.
func serveHTTP(t testing.TB, s *mcpserver.Server, tokens ...mcpserver.Token) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	checktest.Must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.ServeHTTP(ctx, l, &mcpserver.HTTPOptions{Tokens: tokens}) }()
	t.Cleanup(func() {
		cancel()
		checktest.Must(t, <-served)
	})
	return "http://" + l.Addr().String() + mcpserver.PathMCP
}

// client connects an SDK client with a protocol version until the end of the test. Empty means the newest version.
// served returns the error of the server after the client has hung up.
func client(
	t testing.TB, transport mcp.Transport, version string, opts *mcp.ClientOptions, served func() error,
) *mcp.ClientSession {
	t.Helper()
	cs, err := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, opts).Connect(t.Context(), transport,
		&mcp.ClientSessionOptions{ProtocolVersion: version})
	checktest.Must(t, err)
	t.Cleanup(func() {
		_ = cs.Close() // only hangs up; the error does not matter
		checktest.Must(t, served())
	})
	return cs
}

// ignored is for servers that check their errors themselves.
func ignored() error { return nil }

// result is a tool result with its decoded JSON.
type result struct {
	*mcp.CallToolResult
	fields map[string]any
}

// do calls a tool.
func do(t testing.TB, cs *mcp.ClientSession, name string, args map[string]any) result {
	t.Helper()
	if args == nil {
		args = map[string]any{}
	}
	res, err := cs.CallTool(t.Context(), &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	fields, ok := res.StructuredContent.(map[string]any)
	if !ok {
		t.Fatalf("%s: structured content is %T", name, res.StructuredContent)
	}
	return result{res, fields}
}

// must calls a tool. The call must succeed.
func must(t testing.TB, cs *mcp.ClientSession, name string, args map[string]any) result {
	t.Helper()
	r := do(t, cs, name, args)
	if r.IsError {
		t.Fatalf("%s: %v", name, r.fields["error"])
	}
	return r
}

func (r result) text(name string) string { return fmt.Sprint(r.fields[name]) }

// failure returns the code and message of a failed call.
func (r result) failure() (code, message string) {
	e, _ := r.fields["error"].(map[string]any)
	code, _ = e["code"].(string)
	message, _ = e["message"].(string)
	return code, message
}

// into decodes the structured content into v.
func (r result) into(t testing.TB, v any) {
	t.Helper()
	raw, err := json.Marshal(r.StructuredContent)
	checktest.Must(t, err)
	checktest.Must(t, json.Unmarshal(raw, v))
}
