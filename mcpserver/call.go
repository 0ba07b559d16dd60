package mcpserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/internal/toolspec"
)

// progressEvery is how often a client that asked for it is told that its call still runs.
const progressEvery = time.Second

// call is one call of a tool.
type call struct {
	scope  *scope
	tool   string
	args   json.RawMessage
	report func(message string) // reports to the client; never nil
}

// handler does a call. Failures that the caller can do something about are in the output.
type handler func(ctx context.Context, c call) (out any, err error)

// callSandboxTool runs one of the tools that Genkit agents have.
func (s *Server) callSandboxTool(ctx context.Context, c call) (any, error) {
	return c.scope.calls.Call(ctx, c.tool, c.args)
}

// addTool registers a tool.
func (s *Server) addTool(srv *mcp.Server, find resolver, def toolspec.Definition, annotations *mcp.ToolAnnotations, do handler) {
	srv.AddTool(&mcp.Tool{
		Name: def.Name, Title: annotations.Title, Description: def.Description, InputSchema: def.Input, OutputSchema: def.Output, Annotations: annotations,
	}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		sc, err := find(ctx, req.Session, req.Extra)
		if err != nil {
			return result(toolspec.Result{Error: toolspec.ErrorOf(err)})
		}
		return s.do(ctx, req, call{scope: sc, tool: def.Name, args: req.Params.Arguments}, do)
	})
}

// do runs a call within the bounds of its scope.
func (s *Server) do(ctx context.Context, req *mcp.CallToolRequest, c call, do handler) (*mcp.CallToolResult, error) {
	select {
	case c.scope.slots <- struct{}{}:
		defer func() { <-c.scope.slots }()
	default:
		return result(toolspec.Result{Error: toolspec.NewError(toolspec.CodeCapacity,
			fmt.Sprintf("%d calls are under way already", cap(c.scope.slots)), "")})
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The SDK lets calls end by themselves when a server or session closes; ours may take an hour.
	stop := context.AfterFunc(c.scope.ctx, func() { cancel(errServerClosed) })
	defer stop()
	p := s.startProgress(ctx, req)
	c.report = p.set
	out, err := do(ctx, c)
	p.stop()
	if err != nil {
		if ctx.Err() == nil {
			return result(toolspec.Result{Error: toolspec.ErrorOf(err)})
		}
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the call was cancelled"}
	}
	return result(out)
}

// result makes what the client gets of an output: the same JSON as structured content and, for clients and models that
// know text only, as text.
func result(out any) (*mcp.CallToolResult, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(out); err != nil {
		return nil, fmt.Errorf("encoding a result: %w", err)
	}
	raw := bytes.TrimRight(buf.Bytes(), "\n")
	return &mcp.CallToolResult{
		Content:           []mcp.Content{&mcp.TextContent{Text: string(raw)}},
		StructuredContent: json.RawMessage(raw),
		IsError:           toolspec.FailureOf(out) != nil,
	}, nil
}

// progress notifies a client that asked for it that its call still runs.
type progress struct {
	said chan string
	quit chan struct{}
	done chan struct{}
}

// startProgress starts the notifications; stop must be called.
func (s *Server) startProgress(ctx context.Context, req *mcp.CallToolRequest) *progress {
	token := req.Params.GetProgressToken()
	if token == nil {
		return nil
	}
	p := &progress{said: make(chan string, 1), quit: make(chan struct{}), done: make(chan struct{})}
	go p.loop(ctx, req.Session, req.Params.Name, token)
	return p
}

// set replaces the message of the next notification.
func (p *progress) set(message string) {
	if p == nil {
		return
	}
	for {
		select {
		case p.said <- message:
			return
		default:
		}
		select {
		case <-p.said: // older news
		default:
		}
	}
}

// stop ends the notifications, so that none follows the answer.
func (p *progress) stop() {
	if p == nil {
		return
	}
	close(p.quit)
	<-p.done
}

func (p *progress) loop(ctx context.Context, ss *mcp.ServerSession, tool string, token any) {
	defer close(p.done)
	began := time.Now()
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	news := ""
	for {
		select {
		case <-p.quit:
			return
		case <-ctx.Done():
			return
		case news = <-p.said:
		case <-ticker.C:
		}
		passed := time.Since(began)
		message := fmt.Sprintf("%s has been running for %d s", tool, int(passed.Seconds()))
		if news != "" {
			message = fmt.Sprintf("%s (%d s)", news, int(passed.Seconds()))
		}
		// Progress must rise with every notification. A client that does not take it gets its answer all the same.
		err := ss.NotifyProgress(ctx, &mcp.ProgressNotificationParams{
			ProgressToken: token, Progress: passed.Seconds(), Message: message,
		})
		if err != nil {
			return
		}
	}
}

// annotationsOf describes a sandbox tool to clients that ask their users before they run one. Nothing that these tools
// do reaches the user's own machine, and without a network nothing else either.
func annotationsOf(def toolspec.Definition, network bool) *mcp.ToolAnnotations {
	open := network && def.Network
	return &mcp.ToolAnnotations{
		Title: def.Title, ReadOnlyHint: def.ReadOnly, DestructiveHint: &def.Destructive, IdempotentHint: def.Idempotent, OpenWorldHint: &open,
	}
}
