package mcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
)

// progressEvery is the interval of progress notifications, if the client requested them.
const progressEvery = time.Second

// call is one call of a tool.
type call struct {
	scope  *scope
	tool   string
	args   json.RawMessage
	report func(message string) // sends a progress message to the client; never nil
}

// handler runs a call. Errors for the caller are in out or in err.
type handler func(ctx context.Context, c call) (out any, err error)

// tool is a tool of the server. No tool affects the user's own computer.
type tool struct {
	toolspec.Definition
	open   bool // the tool may affect something outside of a sandbox
	direct bool // a call needs no slot
	do     handler
}

// define returns a tool. The tools of Genkit agents are defined in package tools.
func define[In, Out any](name, title, description string, do handler) tool {
	t := tool{Definition: toolspec.Definition{Name: name, Title: title, Description: description}, do: do}
	t.Input, t.Output = toolspec.Schemas[In, Out]()
	return t
}

// addTool registers a tool. A call of the tool runs, or resumes a call with a question.
func (s *Server) addTool(srv *mcp.Server, find resolver, t tool) {
	srv.AddTool(&mcp.Tool{
		Name: t.Name, Title: t.Title, Description: t.Description, InputSchema: t.Input, OutputSchema: mayPend(t.Output),
		Annotations: &mcp.ToolAnnotations{
			Title: t.Title, ReadOnlyHint: t.ReadOnly, DestructiveHint: &t.Destructive, IdempotentHint: t.Idempotent,
			OpenWorldHint: &t.open,
		},
	}, func(ctx context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		sc, err := find(ctx, req.Session, req.Extra)
		if err != nil {
			return failed(toolspec.ErrorOf(err))
		}
		report, end := startProgress(ctx, req)
		defer end() // no progress may follow the answer
		c := call{scope: sc, tool: t.Name, args: req.Params.Arguments, report: report}
		switch {
		case req.Params.RequestState != "":
			return s.resume(ctx, c, req.Params)
		case t.direct:
			return s.perform(ctx, c, t.do)
		}
		return s.begin(ctx, req, c, t.do)
	})
}

// perform runs a call until it returns or the scope ends.
func (s *Server) perform(ctx context.Context, c call, do handler) (res *mcp.CallToolResult, err error) {
	ctx, cancel := context.WithCancelCause(session.WithBase(ctx, s.base))
	defer cancel(nil)
	// When a server or session closes, the SDK waits for running calls, which may take an hour.
	defer context.AfterFunc(c.scope.ctx, func() { cancel(errServerClosed) })()
	defer bound.Recovered(ctx, s.log, "a tool panicked", func() {
		res, err = failed(toolspec.Failf(toolspec.CodeInternal, "%s failed unexpectedly", c.tool))
	}, "tool", c.tool)
	out, err := do(bound.WithEdits(ctx, c.scope.edits), c)
	switch {
	case err == nil:
		return result(out)
	case ctx.Err() != nil:
		return nil, errCancelled
	}
	return failed(s.failure(ctx, c.tool, err))
}

var errCancelled error = &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the call was canceled"}

// failure converts err to the error for the caller. It logs internal errors for the operator, because they do not help
// the caller.
func (s *Server) failure(ctx context.Context, tool string, err error) *toolspec.Error {
	told := toolspec.ErrorOf(err)
	if told.Code == toolspec.CodeInternal && !errors.As(err, new(*toolspec.Error)) {
		// Other errors were logged where they occurred.
		s.log.ErrorContext(ctx, "a tool failed", "tool", tool, "error", err)
	}
	return told
}

// typed converts a function with typed input and output to a handler.
func typed[In, Out any](do func(context.Context, call, In) (Out, error)) handler {
	return func(ctx context.Context, c call) (any, error) {
		in, fail := toolspec.DecodeInput[In](c.args)
		if fail != nil {
			return nil, fail
		}
		if err := decided(ctx, c.scope, c.tool, nil); err != nil {
			return nil, err
		}
		out, err := do(ctx, c, in)
		if refused, ok := errors.AsType[*toolspec.Error](err); ok && refused.Rule != "" {
			err = errors.Join(err, decided(ctx, c.scope, c.tool, refused))
		}
		return out, err
	}
}

// decided writes the decision on a request to the audit log, with the rule if it was refused.
func decided(ctx context.Context, sc *scope, what string, refused *toolspec.Error) error {
	decision, rule := audit.Allowed, ""
	if refused != nil {
		decision, rule = audit.Refused, refused.Rule
		attrs := trace.WithAttributes(telemetry.Text(telemetry.KeyRule, rule))
		trace.SpanFromContext(ctx).AddEvent(telemetry.EventRefused, attrs)
	}
	return audit.Note(ctx, func(r *audit.Record) {
		r.Event, r.Run, r.Tool, r.Decision, r.Rule = audit.EventTool, sc.run.ID, what, decision, rule
	})
}

// result converts an output to a tool result. The structured content and the text content have the same JSON, because
// some clients and models support only text. Images become image content. If out is already a tool result, result
// returns it unchanged.
func result(out any) (*mcp.CallToolResult, error) {
	if res, ok := out.(*mcp.CallToolResult); ok {
		return res, nil
	}
	raw, err := sanitize.JSON(out)
	if err != nil {
		return nil, fmt.Errorf("encoding a result: %w", err)
	}
	content := []mcp.Content{&mcp.TextContent{Text: string(raw)}}
	for _, img := range toolspec.ImagesOf(out) {
		content = append(content, &mcp.ImageContent{MIMEType: img.MediaType, Data: img.Data})
	}
	return &mcp.CallToolResult{
		Content: content, StructuredContent: json.RawMessage(raw), IsError: toolspec.FailureOf(out) != nil,
	}, nil
}

// failed converts an error to a tool result.
func failed(e *toolspec.Error) (*mcp.CallToolResult, error) { return result(toolspec.Result{Error: e}) }

// startProgress starts to send progress notifications if the client requested them. report sets the message of the next
// notification. end stops the notifications.
func startProgress(ctx context.Context, req *mcp.CallToolRequest) (report func(message string), end func()) {
	token := req.Params.GetProgressToken()
	if token == nil {
		return func(string) {}, func() {}
	}
	var latest atomic.Value // string
	news, began := make(chan struct{}, 1), time.Now()
	ctx, cancel := context.WithCancel(ctx)
	var sending sync.WaitGroup
	sending.Go(func() {
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-news:
			case <-ticker.C:
			}
			passed := time.Since(began)
			message := fmt.Sprintf("%s has been running for %d s", req.Params.Name, int(passed.Seconds()))
			if text, ok := latest.Load().(string); ok {
				message = fmt.Sprintf("%s (%d s)", text, int(passed.Seconds()))
			}
			p := &mcp.ProgressNotificationParams{ProgressToken: token, Progress: passed.Seconds(), Message: message}
			// Progress must increase with every notification. A client still gets the answer if it rejects notifications.
			if req.Session.NotifyProgress(ctx, p) != nil {
				return
			}
		}
	})
	report = func(message string) {
		latest.Store(message)
		select {
		case news <- struct{}{}:
		default: // the previous notification is not sent yet
		}
	}
	return report, func() { cancel(); sending.Wait() }
}
