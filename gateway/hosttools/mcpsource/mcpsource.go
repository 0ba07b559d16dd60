// Package mcpsource provides the tools of an MCP server as host tools. The server is a program started by the package,
// or an HTTP server.
//
// The server is untrusted. The messages are bounded, requests are refused, and the tool list is read once per run. A
// changed list takes effect in the next run.
package mcpsource

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

// Limits for a server.
const (
	defaultTimeout = 30 * time.Second
	maxTools       = 1000 // maximum number of listed tools
	maxPages       = 100
	maxRestarts    = 3
	firstPause     = 500 * time.Millisecond // pause before a restart; each further pause is four times as long
	hungPause      = 5 * time.Second        // pause after an HTTP server did not answer
	settled        = 10 * time.Minute       // an exit after this time is not counted as a consecutive exit
	without        = "Continue without this server, and mention it in the answer."
	tryAgain       = "Try again in a moment. If it fails again, continue without this server."
)

// Options configures New. The field comments describe the zero values.
type Options struct {
	Log *slog.Logger // if nil, slog.Default
	// Environ sets PATH, HOME, and LANG for a program, as "NAME=value". If nil, the program has only the server's
	// variables.
	Environ []string
}

// New returns the tools of a server. The server is started or connected on first use.
func New(server Server, o *Options) hosttools.Source {
	s := &source{server: server, o: *cmp.Or(o, &Options{}), redact: server.Redactor(), turn: make(chan struct{}, 1)}
	s.o.Log = cmp.Or(s.o.Log, slog.Default()).With("server", server.Name)
	s.server.Timeout = cmp.Or(server.Timeout, defaultTimeout)
	return s
}

type source struct {
	server Server
	o      Options
	redact func(string) string
	stale  atomic.Bool // the tool list may have changed

	turn chan struct{} // a lock with context support, held while a connection is made

	// turn guards since, hung, restarts, and modern.
	since    time.Time // time of the latest start; zero before the first start
	hung     time.Time // time when a start reached its timeout
	restarts int
	modern   bool // the program refused to initialize a session

	mu      sync.Mutex // guards the fields below
	closed  bool
	latest  *listing // nil before the first
	session *mcp.ClientSession
	broken  *atomic.Bool // the session's connection is broken
	stop    func()       // stops the program
}

// Name returns the server's name.
func (s *source) Name() string { return s.server.Name }

// Tools returns the tools. It lists them again if a program reported a change. HTTP servers cannot report changes.
func (s *source) Tools(ctx context.Context) (tools []hosttools.Tool, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.server.Timeout)
	defer cancel()
	err = inSession(ctx, func(ctx context.Context) error {
		_, tools, err = s.current(ctx, s.server.URL != "")
		return err
	})
	return tools, err
}

// inSession calls do. If an HTTP server has ended the session and therefore ignored a message, inSession calls do once
// more, which connects again.
func inSession(ctx context.Context, do func(context.Context) error) error {
	ignored := &atomic.Bool{}
	err := do(context.WithValue(ctx, ignoredKey{}, ignored))
	if err != nil && ctx.Err() == nil && ignored.Load() {
		err = do(ctx)
	}
	return err
}

// listing is a running or finished request for the tools of a connection. tools and ok are set before done is closed.
type listing struct {
	of    *mcp.ClientSession
	done  chan struct{}
	tools []hosttools.Tool
	ok    bool
}

// current returns the connection and the tools. It lists them after a start, after a reported change, and, if again is
// set, after a finished listing. Callers share a running listing. If it fails, for example because its caller has given
// up, the others list the tools themselves.
func (s *source) current(ctx context.Context, again bool) (*mcp.ClientSession, []hosttools.Tool, error) {
	for {
		cs, err := s.connect(ctx)
		if err != nil {
			return nil, nil, err
		}
		s.mu.Lock()
		l := s.latest
		if s.stale.Swap(false) || l == nil || l.of != cs || bound.Closed(l.done) && (again || !l.ok) {
			l = &listing{of: cs, done: make(chan struct{})}
			s.latest = l
			s.mu.Unlock()
			defer close(l.done)
			l.tools, err = s.list(ctx, cs)
			l.ok = err == nil
			return cs, l.tools, err
		}
		s.mu.Unlock()
		select {
		case <-l.done:
		case <-ctx.Done():
			return nil, nil, s.unavailable("it is busy", ctx.Err())
		}
		if l.ok {
			return cs, l.tools, nil
		}
	}
}

// list requests all pages.
func (s *source) list(ctx context.Context, cs *mcp.ClientSession) ([]hosttools.Tool, error) {
	tools, cursor, more := []hosttools.Tool{}, "", false
	names, cursors := map[string]bool{}, map[string]bool{"": true}
	for range maxPages {
		page, err := cs.ListTools(ctx, &mcp.ListToolsParams{Cursor: cursor})
		if err != nil {
			return nil, s.unavailable("cannot list its tools", err)
		}
		for _, t := range page.Tools {
			switch {
			case t == nil, names[t.Name]:
			case len(tools) == maxTools:
				more = true
			default:
				names[t.Name] = true
				tools = append(tools, s.tool(t))
			}
		}
		if cursor = page.NextCursor; cursors[cursor] || more {
			break
		}
		cursors[cursor] = true
	}
	if more || cursor != "" {
		s.o.Log.WarnContext(ctx, "the tool list of an MCP server is incomplete", "tools", len(tools))
	}
	if s.server.Pin == "" {
		return tools, nil
	}
	digest, err := hosttools.Digest(tools)
	if err != nil {
		return nil, err
	}
	if got := "sha256:" + digest; got != s.server.Pin {
		return nil, toolspec.Failf(toolspec.CodeUnavailable,
			"the tools of server %s do not match the pinned digest: their digest is %s", s.server.Name, got).
			WithRemediation("Continue without this server. Its operator must review the changes and pin the new digest.")
	}
	return tools, nil
}

// tool converts a tool of the server to a host tool. It assumes the worst for undeclared properties, for example
// destructive effects.
func (s *source) tool(t *mcp.Tool) hosttools.Tool {
	def := hosttools.Definition{
		Name: t.Name, Title: s.redact(t.Title), Description: s.redact(t.Description), Destructive: true, Network: true,
	}
	if a := t.Annotations; a != nil {
		def.Title = cmp.Or(def.Title, s.redact(a.Title))
		def.ReadOnly, def.Idempotent = a.ReadOnlyHint, a.IdempotentHint
		def.Destructive = !a.ReadOnlyHint && (a.DestructiveHint == nil || *a.DestructiveHint)
		def.Network = a.OpenWorldHint == nil || *a.OpenWorldHint
	}
	def.Input, _ = s.redacted(t.InputSchema).(map[string]any)
	def.Output, _ = s.redacted(t.OutputSchema).(map[string]any)
	handle := func(ctx context.Context, c hosttools.Call) (hosttools.Result, error) { return s.call(ctx, t.Name, c) }
	return hosttools.Tool{Definition: def, Server: s.server.Name, Handle: handle}
}

// redacted removes the server's secrets from a JSON value.
func (s *source) redacted(v any) any {
	switch v := v.(type) {
	case string:
		return s.redact(v)
	case []any:
		list := make([]any, len(v))
		for i, item := range v {
			list[i] = s.redacted(item)
		}
		return list
	case map[string]any:
		object := make(map[string]any, len(v))
		for name, value := range v {
			object[s.redact(name)] = s.redacted(value)
		}
		return object
	}
	return v
}

// call calls a tool. If the server exits during a call, the call is not repeated.
func (s *source) call(ctx context.Context, name string, c hosttools.Call) (out hosttools.Result, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.server.Timeout)
	defer cancel()
	err = inSession(ctx, func(ctx context.Context) error {
		out, err = s.try(ctx, name, c)
		return err
	})
	return out, err
}

func (s *source) try(ctx context.Context, name string, c hosttools.Call) (out hosttools.Result, err error) {
	cs, err := s.connect(ctx)
	if err == nil && s.server.Pin != "" {
		cs, _, err = s.current(ctx, false) // it may have other tools after a restart
	}
	if err != nil {
		s.o.Log.WarnContext(ctx, "an MCP server is unavailable", "tool", name, "error", err)
		return out, err
	}
	params := &mcp.CallToolParams{Name: name, Arguments: c.Args}
	if parent := telemetry.TraceParent(ctx); parent != "" {
		params.Meta = mcp.Meta{"traceparent": parent}
	}
	res, err := cs.CallTool(ctx, params)
	var refused *jsonrpc.Error
	switch {
	case errors.As(err, &refused) && refused.Code == codeTooLarge:
		return out, toolspec.Failf(toolspec.CodeTooLarge, "the response of server %s is %s", s.server.Name, refused.Message).
			WithRemediation("The call was executed. Request less at once: a part, a page, or a summary.")
	case errors.As(err, &refused) && !rejected(refused):
		return hosttools.Result{Failed: true, Text: s.redact(refused.Message)}, nil
	case ctx.Err() != nil:
		return out, toolspec.Failf(toolspec.CodeTimeout, "server %s did not respond in time", s.server.Name).
			WithRemediation("Request less in one call. The call may have had an effect.")
	case refused != nil:
		s.o.Log.WarnContext(ctx, "an MCP server is unavailable", "tool", name, "error", s.redact(err.Error()))
		fail := toolspec.Failf(toolspec.CodeUnavailable, "server %s is unavailable", s.server.Name).
			WithRemediation(tryAgain)
		if dial, ok := errors.AsType[*net.OpError](err); !ok || dial.Op != "dial" {
			fail.Retryable = false
			fail.Remediation = "The call may have had an effect."
		}
		return out, fail
	case err != nil:
		if text, ok := answer(err); ok {
			return hosttools.Result{Failed: true, Text: s.redact(text)}, nil
		}
		s.o.Log.WarnContext(ctx, "a call of an MCP server failed", "tool", name, "error", s.redact(err.Error()))
		return out, toolspec.Failf(toolspec.CodeToolFailed, "server %s exited or sent an invalid response", s.server.Name).
			WithRemediation("The call may have had an effect.")
	}
	return s.result(res)
}

// rejected reports whether an error is the SDK's error for an HTTP request without an answer of the MCP server.
func rejected(e *jsonrpc.Error) bool { return e.Code == -32005 && e.Message == "rejected by transport" }

// answer returns the message of a server's error that the SDK takes for the end of the connection because of its code.
func answer(err error) (string, bool) {
	text, ok := strings.CutPrefix(err.Error(), mcp.ErrConnectionClosed.Error()+`: calling "tools/call": `)
	return text, ok && !strings.HasPrefix(text, "client is closing") && !strings.HasPrefix(text, "server is closing")
}

func (s *source) result(res *mcp.CallToolResult) (hosttools.Result, error) {
	out := hosttools.Result{Failed: res.IsError}
	var text []string
	for _, c := range res.Content {
		switch c := c.(type) {
		case *mcp.TextContent:
			text = append(text, c.Text)
		case *mcp.ImageContent:
			out.Files = append(out.Files, hosttools.File{MIME: c.MIMEType, Bytes: c.Data})
		case *mcp.AudioContent:
			out.Files = append(out.Files, hosttools.File{MIME: c.MIMEType, Bytes: c.Data})
		case *mcp.EmbeddedResource:
			if r := c.Resource; r != nil && r.Blob != nil {
				out.Files = append(out.Files, hosttools.File{Name: r.URI, MIME: r.MIMEType, Bytes: r.Blob})
			} else if r != nil {
				text = append(text, r.Text)
			}
		case *mcp.ResourceLink:
			text = append(text, c.URI)
		}
	}
	if out.Text = strings.Join(text, "\n"); out.Failed {
		out.Text = s.redact(out.Text)
	}
	if res.StructuredContent == nil || out.Failed {
		return out, nil
	}
	var err error
	out.Data, err = structured(res.StructuredContent)
	return out, err
}

// connect returns the connection, and creates one if necessary.
func (s *source) connect(ctx context.Context) (*mcp.ClientSession, error) {
	if err := bound.Enter(ctx, s.turn); err != nil {
		return nil, s.unavailable("it is busy", err)
	}
	defer func() { <-s.turn }()
	s.mu.Lock()
	cs, closed := s.session, s.closed
	if cs != nil && s.broken.Load() { // watch will notice this too
		cs, s.session = nil, nil
	}
	s.mu.Unlock()
	switch {
	case closed:
		return nil, toolspec.Failf(toolspec.CodeClosed, "server %s is closed", s.server.Name).WithRemediation(without)
	case cs != nil:
		return cs, nil
	case s.server.URL != "" && time.Since(s.hung) < hungPause: // others may be waiting for the turn
		return nil, s.unavailable("it did not answer a moment ago", context.DeadlineExceeded)
	case s.since.IsZero(), s.server.URL != "": // there is no program to restart
		return s.start(ctx)
	case time.Since(s.since) > settled:
		s.restarts = 0
	case s.restarts >= maxRestarts:
		return nil, toolspec.Failf(toolspec.CodeUnavailable, "server %s exited %d times and restarts in up to %d minutes",
			s.server.Name, s.restarts+1, settled/time.Minute).WithRemediation(without)
	}
	select {
	case <-time.After(time.Until(s.since.Add(firstPause << (2 * s.restarts)))):
	case <-ctx.Done():
	}
	if err := ctx.Err(); err != nil { // even if the pause has passed
		return nil, s.unavailable("it is restarting", err)
	}
	s.restarts++
	return s.start(ctx)
}

// legacy is the latest protocol revision with sessions.
const legacy = "2025-11-25"

// start creates a connection. It initializes a session with a program, because many programs exit or hang on the
// requests of later revisions. The caller must hold s.turn.
func (s *source) start(ctx context.Context) (*mcp.ClientSession, error) {
	s.since = time.Now()
	o := &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}}
	if s.server.URL == "" { // for an HTTP server, the SDK would wait for a stream without a time limit
		o.ToolListChangedHandler = func(context.Context, *mcp.ToolListChangedRequest) { s.stale.Store(true) }
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "workcell", Version: "1"}, o)
	client.AddReceivingMiddleware(refuse)
	broken := &atomic.Bool{}
	transport, p, err := s.transport(broken)
	if err != nil {
		return nil, s.unavailable("it cannot start", err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.server.Timeout)
	defer cancel()
	version := "" // the latest revision, or an earlier one if the server refuses it
	if s.server.URL == "" && !s.modern {
		version = legacy
	}
	// The program must outlive the starting call.
	cs, err := client.Connect(ctx, transport, &mcp.ClientSessionOptions{ProtocolVersion: version})
	if err != nil {
		p.stop()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) && time.Since(s.since) >= s.server.Timeout/2 {
			s.hung = time.Now() // a caller with little time proves nothing
		}
		if version == legacy && errors.As(err, new(*jsonrpc.Error)) {
			s.modern = true
			cs, again := s.start(ctx)
			if again != nil {
				s.modern = false
				return nil, errors.Join(again, err)
			}
			return cs, nil
		}
		return nil, s.unavailable("it does not answer as an MCP server", p.why(err))
	}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.session, s.stop, s.broken = cs, p.stop, broken
	}
	s.mu.Unlock()
	if closed {
		p.stop()
		cs.Close() // the program has been stopped
		return nil, toolspec.Failf(toolspec.CodeClosed, "server %s is closed", s.server.Name).WithRemediation(without)
	}
	go s.watch(cs, p.stop) // ends with the connection, which Close closes
	return cs, nil
}

// refuse refuses all requests of a server except ping.
func refuse(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		if method == "ping" || strings.HasPrefix(method, "notifications/") {
			return next(ctx, method, req)
		}
		return nil, refusal(method)
	}
}

func refusal(method string) error {
	return &jsonrpc.Error{Code: jsonrpc.CodeMethodNotFound, Message: sanitize.Clip(method) + " is not available"}
}

// watch removes a connection after it has ended.
func (s *source) watch(cs *mcp.ClientSession, stop func()) {
	err := cs.Wait()
	stop()
	cs.Close() // frees the SDK's resources; the server has ended
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session == cs {
		s.session = nil
	}
	if !s.closed {
		why := "it closed the connection"
		if err != nil {
			why = s.redact(err.Error())
		}
		s.o.Log.Warn("an MCP server exited", "error", why)
	}
}

// Close closes the connection, and kills the program and all child processes.
func (s *source) Close() error {
	s.mu.Lock()
	s.closed = true
	cs, stop := s.session, s.stop
	s.session = nil
	s.mu.Unlock()
	if cs == nil {
		return nil
	}
	stop()
	cs.Close() // the server has ended or was asked to, so the error is irrelevant
	return nil
}

// unavailable returns the error for an unusable server. The text contains the cause, for the operator. The wrapped
// *toolspec.Error is for models.
func (s *source) unavailable(why string, cause error) error {
	return &sanitize.Error{
		Text: why + ": " + s.redact(cause.Error()),
		Err:  toolspec.Failf(toolspec.CodeUnavailable, "server %s: %s", s.server.Name, why).WithRemediation(tryAgain),
	}
}
