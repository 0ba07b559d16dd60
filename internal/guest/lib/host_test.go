package lib_test

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/guest/guesttest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// host provides host tools on an abstract socket, like the guest agent does for code in a sandbox.
type host struct {
	address string
	dir     string // directory for saved results
	server  *mcp.Server

	mu       sync.Mutex
	listener net.Listener
	conns    map[net.Conn]bool
	dialled  int // number of connections so far

	calls     sync.Map // tool name to *atomic.Int64
	cancelled chan struct{}
}

func newHost(t *testing.T) *host {
	t.Helper()
	h := &host{
		address: "@workcell-tools-" + rand.Text(), dir: filepath.Join(t.TempDir(), ".workcell", "results"),
		conns: map[net.Conn]bool{}, cancelled: make(chan struct{}, 100),
		server: mcp.NewServer(&mcp.Implementation{Name: "host", Version: "1"}, nil),
	}
	must(t, os.MkdirAll(h.dir, 0o755))
	h.addTools()
	h.listen(t)
	t.Cleanup(h.leave)
	return h
}

func (h *host) listen(t *testing.T) {
	t.Helper()
	l, err := net.Listen("unix", h.address)
	must(t, err)
	h.mu.Lock()
	h.listener = l
	h.mu.Unlock()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			h.mu.Lock()
			h.conns[c] = true
			h.dialled++
			h.mu.Unlock()
			go h.serve(c)
		}
	}()
}

func (h *host) serve(c net.Conn) {
	s, err := h.server.Connect(context.Background(), &mcp.IOTransport{Reader: c, Writer: c}, nil)
	if err == nil {
		_ = s.Wait() // ends with the client
	}
	_ = c.Close()
	h.mu.Lock()
	delete(h.conns, c)
	h.mu.Unlock()
}

// leave closes the listener and every connection.
func (h *host) leave() {
	h.mu.Lock()
	_ = h.listener.Close()
	h.mu.Unlock()
	h.cut()
}

func (h *host) cut() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.conns {
		_ = c.Close()
	}
}

func (h *host) count(tool string) *atomic.Int64 {
	n, _ := h.calls.LoadOrStore(tool, new(atomic.Int64))
	return n.(*atomic.Int64)
}

type answer = mcp.CallToolResult

func data(v any) *answer { return &answer{StructuredContent: v} }

func text(s string) *answer { return &answer{Content: []mcp.Content{&mcp.TextContent{Text: s}}} }

func failed(code, message string) *answer {
	return &answer{IsError: true, StructuredContent: map[string]any{"error": map[string]any{
		"code": code, "message": message, "remediation": "Do something else.", "retryable": code == "capacity",
	}}}
}

// saved writes a result to a file, like the dispatcher does with a large result.
func (h *host) saved(name, kind string, content []byte) *answer {
	if err := os.WriteFile(filepath.Join(h.dir, name), content, 0o666); err != nil {
		return failed("internal", err.Error())
	}
	return data(map[string]any{"$saved": map[string]any{
		"path": filepath.Join(h.dir, name), "bytes": len(content), "kind": kind, "length": 3, "keys": []string{"a"}, "head": "x",
	}})
}

type toolFunc = func(ctx context.Context, args map[string]any, meta mcp.Meta) *answer

func (h *host) add(t *mcp.Tool, handle toolFunc) {
	t.InputSchema = json.RawMessage(`{"type":"object"}`)
	h.server.AddTool(t, func(ctx context.Context, r *mcp.CallToolRequest) (*answer, error) {
		h.count(t.Name).Add(1)
		args := map[string]any{}
		if err := json.Unmarshal(r.Params.Arguments, &args); err != nil {
			return nil, err
		}
		return handle(ctx, args, r.Params.Meta), nil
	})
}

func (h *host) addTools() {
	named := func(name string) *mcp.Tool { return &mcp.Tool{Name: name, Description: "Does " + name + ".\nMore."} }
	echo := func(_ context.Context, args map[string]any, _ mcp.Meta) *answer { return data(args) }
	for _, name := range []string{"orders_lookup", "my-server_get-thing"} {
		tool := named(name)
		tool.Meta = mcp.Meta{wire.MetaIndex: strings.Replace(name, "_", ".", 1) + "(id, note?) - Looks one up."}
		h.add(tool, echo)
	}
	for name, f := range map[string]toolFunc{
		"orders_text": func(context.Context, map[string]any, mcp.Meta) *answer { return text(`{"a": 1}`) },
		"orders_refund": func(context.Context, map[string]any, mcp.Meta) *answer {
			return failed("permission_denied", "too much")
		},
		"orders_fail": func(_ context.Context, args map[string]any, _ mcp.Meta) *answer {
			return failed(fmt.Sprint(args["code"]), "as asked")
		},
		"orders_picture": func(context.Context, map[string]any, mcp.Meta) *answer {
			a, file := text("seen"), filepath.Join(h.dir, "..", "picture.png")
			if err := os.WriteFile(file, []byte("PNG"), 0o666); err != nil {
				return failed("internal", err.Error())
			}
			a.Meta = mcp.Meta{wire.MetaFiles: []any{map[string]any{"path": file, "bytes": 3, "kind": "image/png"}}}
			return a
		},
		"orders_broken": func(context.Context, map[string]any, mcp.Meta) *answer {
			a := text("no luck")
			a.IsError = true
			return a
		},
		"orders_meta": func(_ context.Context, _ map[string]any, meta mcp.Meta) *answer { return data(meta) },
		"orders_slow": func(ctx context.Context, _ map[string]any, _ mcp.Meta) *answer {
			<-ctx.Done()
			h.cancelled <- struct{}{}
			return text("never")
		},
		"big_rows": func(context.Context, map[string]any, mcp.Meta) *answer { return h.saved("rows.json", "array", rows()) },
		"big_text": func(context.Context, map[string]any, mcp.Meta) *answer { return h.saved("log.txt", "text", rows()) },
		"big_binary": func(context.Context, map[string]any, mcp.Meta) *answer {
			return h.saved("x.bin", "application/octet-stream", []byte{0, 0xff})
		},
	} {
		h.add(named(name), f)
	}
	h.addFlaky()
}

// addFlaky adds tools whose first call breaks the connection, and a tool whose call makes the host disappear.
func (h *host) addFlaky() {
	h.add(&mcp.Tool{Name: "flaky_leave"}, func(ctx context.Context, _ map[string]any, _ mcp.Meta) *answer {
		h.leave()
		<-ctx.Done()
		return text("never")
	})
	for name, hints := range map[string]*mcp.ToolAnnotations{
		"flaky_read": {ReadOnlyHint: true}, "flaky_put": {IdempotentHint: true}, "flaky_write": {},
	} {
		h.add(&mcp.Tool{Name: name, Annotations: hints}, func(ctx context.Context, args map[string]any, _ mcp.Meta) *answer {
			if h.count(name).Load() == 1 {
				h.cut()
				<-ctx.Done()
			}
			return data(args)
		})
	}
}

// rows returns 1 MiB of JSON.
func rows() []byte {
	row := `"` + strings.Repeat("ä", 511) + `"`
	return []byte("[" + row + strings.Repeat(","+row, 1023) + "]")
}

// guestBinary is the path of the guest agent, built from source.
var guestBinary string

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "workcell-lib")
	if err == nil {
		defer os.RemoveAll(dir)
		guestBinary, err = guesttest.Build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// install creates the files of a sandbox's read-only directory.
func install(t *testing.T) string {
	t.Helper()
	root := filepath.Join(t.TempDir(), ".workcell")
	files, err := embed.Files(nil)
	must(t, err)
	for _, f := range files {
		name := filepath.Join(root, f.Path)
		err := os.MkdirAll(filepath.Dir(name), 0o755)
		switch {
		case err != nil:
		case f.Mode.Type() == fs.ModeSymlink:
			err = os.Symlink(string(f.Data), name)
		case f.Data == nil: // a file open for writing could not be executed
			err = os.Link(guestBinary, name)
		default:
			err = os.WriteFile(name, f.Data, f.Mode)
		}
		must(t, err)
	}
	return root
}

func await(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(2 * time.Minute):
		t.Fatalf("%s did not happen", what)
	}
}

var must = checktest.Must
