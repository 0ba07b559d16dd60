package hosttools

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"path"
	"slices"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

const methodCall = "tools/call"

// metaTraceParent is the _meta key for the parent span of a call.
const metaTraceParent = "traceparent"

// resourceScheme is the prefix of declaration URIs.
const resourceScheme = "tools://"

// Serve speaks MCP with a command on c until the command hangs up, ctx is done, or the set is closed. It closes c. span
// is the command's span.
func (a *Access) Serve(ctx context.Context, c net.Conn, execID string, span trace.SpanContext) error {
	defer c.Close() // the first error was already returned
	if !a.set.begin() {
		return errSetClosed
	}
	defer a.set.running.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(a.set.life, cancel)()
	l := &link{
		access: a, ctx: ctx, cancel: cancel, execID: execID, span: span,
		c: c, lines: bufio.NewReader(c), writing: make(chan struct{}, 1), open: map[jsonrpc.ID]*request{},
	}
	ss, err := a.set.server.Connect(context.WithValue(context.WithoutCancel(ctx), linkKey{}, l), l, nil)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { c.Close() })() // ends the session; the error of Close adds nothing
	err = ss.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// newServer returns the MCP server of the set. It answers tools/call before the SDK looks up a handler, to keep the
// error for a tool without a grant equal to the error for an unknown tool.
func (s *Set) newServer() *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "workcell", Version: "1"}, &mcp.ServerOptions{
		PageSize: maxTools + 1,
		Capabilities: &mcp.ServerCapabilities{
			Tools: &mcp.ToolCapabilities{}, Resources: &mcp.ResourceCapabilities{},
		},
	})
	for _, e := range s.sorted {
		server.AddTool(mcpTool(e.tool), func(context.Context, *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			return nil, errors.New("calls are answered by middleware")
		})
	}
	for _, name := range slices.Sorted(maps.Keys(s.declared)) {
		text := s.declared[name]
		media := cmp.Or(map[string]string{".md": "text/markdown", ".json": "application/json"}[path.Ext(name)], "text/plain")
		r := &mcp.Resource{URI: resourceScheme + name, Name: name, MIMEType: media, Size: int64(len(text))}
		server.AddResource(r, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			c := &mcp.ResourceContents{URI: r.URI, MIMEType: r.MIMEType, Text: text}
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{c}}, nil
		})
	}
	server.AddReceivingMiddleware(s.receive)
	return server
}

func mcpTool(t Tool) *mcp.Tool {
	tool := &mcp.Tool{
		Name: t.MCPName(), Title: t.Title, Description: t.Description, InputSchema: t.Input,
		Meta: mcp.Meta{wire.MetaIndex: indexLine(t)},
		Annotations: &mcp.ToolAnnotations{
			ReadOnlyHint: t.ReadOnly, DestructiveHint: &t.Destructive, IdempotentHint: t.Idempotent, OpenWorldHint: &t.Network,
		},
	}
	if t.Output != nil {
		tool.OutputSchema = t.Output
	}
	return tool
}

// receive handles tool calls and refuses unnecessary methods, for example prompts/list.
func (s *Set) receive(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		switch method {
		case methodCall:
			return s.call(ctx, req)
		case "tools/list", "resources/list", "resources/read", "initialize", "notifications/initialized",
			"notifications/cancelled", "server/discover", "ping":
			return next(ctx, method, req)
		}
		message := fmt.Sprintf("unknown method %q", plain(method, 80))
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: message}
	}
}

func (s *Set) call(ctx context.Context, req mcp.Request) (mcp.Result, error) {
	l, ok := ctx.Value(linkKey{}).(*link)
	params, isCall := req.GetParams().(*mcp.CallToolParamsRaw)
	if !ok || !isCall || params == nil {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "the call has no parameters"}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })()
	text := func(key string) string {
		value, _ := params.Meta[key].(string)
		return value
	}
	reply := l.access.Call(ctx, l.execID, l.span, Request{
		Tool: params.Name, Args: params.Arguments, Save: text(wire.MetaSave), TraceParent: text(metaTraceParent),
	})
	return reply.mcp(), nil
}

// mcp converts the reply to an MCP result. Errors are structured content too: {"error": {…}}.
func (r Reply) mcp() *mcp.CallToolResult {
	res, text := &mcp.CallToolResult{}, r.Text
	if len(r.Files) > 0 {
		res.Meta = mcp.Meta{wire.MetaFiles: r.Files}
	}
	switch {
	case r.Error != nil:
		failure := struct {
			*Error
			RetryAfter int64 `json:"retry_after_ms,omitempty"`
		}{r.Error, r.RetryAfter.Milliseconds()}
		data, _ := sanitize.JSON(map[string]any{"error": failure}) // plain data, so the error is always nil
		res.IsError, res.StructuredContent = true, json.RawMessage(data)
		text = r.Error.Error() + "\n" + r.Error.Remediation
	case len(r.Data) > 0:
		res.StructuredContent, text = r.Data, string(r.Data)
	}
	res.Content = []mcp.Content{&mcp.TextContent{Text: text}}
	return res
}
