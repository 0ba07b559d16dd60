package conformance

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/session"
)

// TestLibrary calls tools from code in real sandboxes: what lies in /.workcell, over the guest's channel, to an MCP server.
func TestLibrary(t *testing.T) {
	on(t, func(t *testing.T, e engine) {
		req := request()
		req.Image = pythonImage
		s := open(t, manager(t, e.connect(t), session.Options{}), session.UserKey("library"), req)
		server := toolServer(s)
		addr, stop, err := s.Serve(t.Context(), session.Service{Name: "tools", Handle: func(ctx context.Context, c *session.ServiceConn) {
			if ss, err := server.Connect(ctx, &mcp.IOTransport{Reader: c, Writer: c}, nil); err == nil {
				_ = ss.Wait() // the command hangs up
			}
		}})
		must(t, err)
		defer stop()
		for name, tc := range map[string]struct {
			argv []string
			want string
		}{
			"python": {[]string{"python3", "-c", `
from concurrent.futures import ThreadPoolExecutor
from workcell import tools, ToolError
with ThreadPoolExecutor(8) as pool:
    print(sum(pool.map(lambda n: tools.orders.lookup(id=n)["id"], range(100))))
print(len(tools.orders.rows()))
try: tools.orders.refund()
except ToolError as e: print(e.code, e.message)
import os; print(os.listdir("/workspace/.workcell/results"))`}, "4950\n1048574\ntool_failed too much\n[]\n"},
			"shell": {[]string{"sh", "-c", `PATH=/.workcell/bin:$PATH
tools ls orders; tools call orders.lookup '{"id": 1}'; tools call orders.rows | wc -c; tools call orders.refund 2>/dev/null; echo $?`},
				"orders_lookup - Looks up.\norders_refund - Refunds.\norders_rows - Lists.\n{\"id\":1}\n1048576\n1\n"},
		} {
			t.Run(name, func(t *testing.T) {
				res, err := s.Exec(t.Context(), session.ExecRequest{Argv: tc.argv, Services: []session.ServiceGrant{{Name: "tools"}},
					Env: map[string]string{"WORKCELL_TOOLS": addr, "PYTHONPATH": "/.workcell/lib/python"}})
				must(t, err)
				if got := string(res.Stdout.Bytes()); got != tc.want {
					t.Errorf("printed %q, want %q\n%s", got, tc.want, res.Stderr.Bytes())
				}
			})
		}
	})
}

// toolServer has a tool that answers, one with a result of 1 MiB, and one that fails.
func toolServer(s *session.Session) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "host", Version: "1"}, nil)
	add := func(name, description string, handle func(ctx context.Context, args json.RawMessage) (*mcp.CallToolResult, error)) {
		server.AddTool(&mcp.Tool{Name: name, Description: description, InputSchema: json.RawMessage(`{"type":"object"}`)},
			func(ctx context.Context, r *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
				return handle(ctx, r.Params.Arguments)
			})
	}
	add("orders_lookup", "Looks up.", func(_ context.Context, args json.RawMessage) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{StructuredContent: args}, nil
	})
	add("orders_refund", "Refunds.", func(context.Context, json.RawMessage) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{IsError: true, Content: []mcp.Content{&mcp.TextContent{Text: "too much"}}}, nil
	})
	add("orders_rows", "Lists.", func(ctx context.Context, _ json.RawMessage) (*mcp.CallToolResult, error) {
		const name = "/workspace/.workcell/results/rows.json"
		rows := `"` + strings.Repeat("x", 1<<20-2) + `"`
		_, err := s.WriteFile(ctx, name, strings.NewReader(rows), session.WriteFileOptions{Size: int64(len(rows)), Overwrite: true})
		return &mcp.CallToolResult{StructuredContent: map[string]any{"$saved": map[string]any{"path": name, "bytes": len(rows), "kind": "string"}}}, err
	})
	return server
}
