package mcpserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/sync/semaphore"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/interrupt"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

// DefaultIdleTimeout is the default of Options.IdleTimeout.
const DefaultIdleTimeout = 30 * time.Minute

// sweepEvery is the interval of the sweep for idle sessions.
const sweepEvery = time.Minute

// maxCalls is the maximum number of concurrent calls of one scope, including pending calls.
const maxCalls = 64

// closeTimeout limits the removal of a scope's sandboxes. closeTogether is how many scopes are removed at a time.
const (
	closeTimeout  = 60 * time.Second
	closeTogether = 16
)

// Options configures New. The field comments describe the zero values. Negative numbers are errors.
type Options struct {
	// Sandbox configures the sandboxes. Mode and Session are ignored. The zero value is a Python sandbox without network.
	Sandbox tools.Sandbox
	// Policy refuses calls before they reach a sandbox. If nil, it defaults to DefaultPolicy. A zero Policy sets no
	// limits, so start with DefaultPolicy.
	Policy *Policy
	// Tasks are the agents and workflows for execute_task, sorted by name. If empty, the tool does not exist.
	Tasks []Task
	// RunTask runs a task until it ends or ctx is done. The task must use the sandboxes of the run in ctx
	// (session.RunFromContext) and leave them open. If the caller can correct an error, the error must be a
	// *hosttools.Error. RunTask must be safe for concurrent use. It must not be nil if there are Tasks.
	RunTask func(ctx context.Context, req TaskRequest) (TaskResult, error)
	// Diff returns the changes in a sandbox since it started with a copy of a directory. It returns nil if the sandbox
	// started empty. If Diff is nil, all sandboxes count as started empty.
	Diff func(ctx context.Context, sandbox *session.Session) (*patch.Patch, error)
	// OnClose is called after the sandboxes of a run have been closed. The run belongs to a session or a task. If nil,
	// nothing is called.
	OnClose func(session.Run)
	// IdleTimeout is the maximum idle time of a sandbox or an execute_task session. If zero, it defaults to
	// DefaultIdleTimeout.
	IdleTimeout time.Duration
	// Shared means other servers with the same tokens serve the same HTTP clients, for revisions from 2026-07-28 on. The
	// managers of all these servers must have session.Options.Join. Close does not close the sandboxes of these clients.
	Shared bool
	// Version is the server version sent to clients. If empty, it defaults to "dev".
	Version string
	// Logger logs messages for the operator. If nil, they are discarded.
	Logger *slog.Logger
}

// Server serves MCP clients. All methods are safe for concurrent use. New starts one goroutine, which ends idle
// sessions. Close stops it.
type Server struct {
	manager *session.Manager
	opts    Options
	policy  Policy
	log     *slog.Logger
	plugin  *tools.Plugin
	defs    []toolspec.Definition
	base    session.Request // settings for every sandbox, including task sandboxes

	room       sync.Mutex    // guards spareAfter; held while one sandbox replaces another
	spareAfter time.Duration // the constant, except in tests

	rounds interrupt.Rounds[*job] // questions answered by repeating the call
	// patches and edits limit the concurrent work of all clients. They hold whole files in memory, for example up to
	// 512 MiB for a patch.
	patches, edits *semaphore.Weighted

	maxWait, keepAfter, commentEvery time.Duration // the constants, except in tests

	// ctx is done when the server ends. The server stores it because it limits the lifetime of the server's goroutines.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex // guards the fields below; never held during a call to a sandbox
	scopes map[*scope]struct{}
	owners map[string]*scope             // scopes of requests without a session, by owner
	bound  map[*mcp.ServerSession]*scope // scopes of HTTP sessions
	gates  map[string]gates              // gates of HTTP scopes, by owner
	jobs   map[string]*job               // running and finished calls, by task_id
	closed bool                          // accepts no new scopes; Close or Detach handles the existing sandboxes
}

// New returns a Server for m. The caller must close m after the server. opts may be nil. If m is nil or an option is
// invalid, the error wraps backend.ErrInvalid.
func New(m *session.Manager, opts *Options) (*Server, error) {
	if m == nil {
		return nil, fmt.Errorf("%w: mcpserver: no session manager", backend.ErrInvalid)
	}
	o := *cmp.Or(opts, &Options{})
	if err := o.complete(); err != nil {
		return nil, err
	}
	s := &Server{
		manager: m, opts: o, policy: *o.Policy, log: o.Logger, plugin: &tools.Plugin{Manager: m, Logger: o.Logger},
		spareAfter: spareAfter, maxWait: maxWait, keepAfter: keepAfter, commentEvery: commentEvery,
		scopes: map[*scope]struct{}{}, owners: map[string]*scope{}, bound: map[*mcp.ServerSession]*scope{},
		gates: map[string]gates{}, jobs: map[string]*job{},
		patches: semaphore.NewWeighted(2), edits: semaphore.NewWeighted(8),
	}
	if err := s.policy.compile(); len(err) > 0 {
		return nil, fmt.Errorf("%w: mcpserver: %w", backend.ErrInvalid, err)
	}
	s.base = session.Request{IdleTimeout: s.opts.IdleTimeout, Ceiling: s.ceiling()}
	s.opts.Sandbox.Limits.ExecTimeout = s.execTimeout()
	s.ctx, s.cancel = context.WithCancel(context.Background())
	probe, err := s.plugin.Calls(newRun(record.NamespaceMCP), s.opts.Sandbox, s.callOptions(nil))
	if err != nil {
		s.cancel()
		return nil, fmt.Errorf("mcpserver: %w", err)
	}
	s.defs = probe.Definitions()
	s.wg.Go(s.sweepLoop)
	return s, nil
}

// callOptions returns the options for the calls of a scope.
func (s *Server) callOptions(sc *scope) *tools.CallOptions {
	return &tools.CallOptions{
		Shared: sc != nil && sc.shared(), Check: s.checker(sc), MaxSeconds: int64(s.policy.Limits.ExecTimeout / time.Second),
		ReadBytes: readBytes, StreamChars: streamChars, MakeRoom: s.makeRoom,
	}
}

// complete fills in defaults.
func (o *Options) complete() error {
	policy := DefaultPolicy()
	o.Policy = cmp.Or(o.Policy, &policy)
	if err := fill("IdleTimeout", &o.IdleTimeout, DefaultIdleTimeout); err != nil {
		return err
	}
	o.Version = cmp.Or(o.Version, "dev")
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.Sandbox.Session = ""
	if o.Sandbox.Runtime == "" && o.Sandbox.Image == "" {
		o.Sandbox.Runtime = frontmatter.RuntimePython
	}
	return nil
}

// Close ends the running calls and closes all sandboxes opened by clients. Calling it again has no effect. Canceling
// ctx does not interrupt the cleanup.
func (s *Server) Close(ctx context.Context) error { return s.end(ctx, true) }

// Detach ends the running calls and leaves the sandboxes to the session manager.
func (s *Server) Detach(ctx context.Context) error { return s.end(ctx, false) }

func (s *Server) end(ctx context.Context, remove bool) error {
	s.mu.Lock()
	s.closed = true
	scopes := slices.Collect(maps.Keys(s.scopes))
	s.mu.Unlock()
	s.cancel()
	errs := bound.Each(closeTogether, len(scopes), func(i int) error { return s.endScope(ctx, scopes[i], remove) })
	s.wg.Wait()
	return errors.Join(errs...)
}

// resolver returns the scope of a request.
type resolver func(ctx context.Context, ss *mcp.ServerSession, extra *mcp.RequestExtra) (*scope, error)

// build returns an SDK server. find selects the scope of each request. transport is the transport's name in spans.
func (s *Server) build(find resolver, transport string) *mcp.Server {
	srv := mcp.NewServer(&mcp.Implementation{
		Name: "workcell", Title: "Workcell sandboxes", Version: s.opts.Version,
	}, &mcp.ServerOptions{
		Instructions: instructions, Logger: quiet(s.log), Capabilities: &mcp.ServerCapabilities{
			Tools: &mcp.ToolCapabilities{}, Resources: &mcp.ResourceCapabilities{},
		},
		// Results are private to one client, so a shared cache must not store them.
		SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.CacheScope = "private" },
	})
	tools := slices.Concat(s.sandboxTools(), s.taskTools(), s.pendingTools())
	for _, t := range tools {
		s.addTool(srv, find, t)
	}
	s.addResources(srv, find)
	srv.AddReceivingMiddleware(traced(transport, tools), s.protect, s.beginScopes(find))
	return srv
}

// sandboxTools returns the tools of Genkit agents.
func (s *Server) sandboxTools() []tool {
	network := s.opts.Sandbox.Network.Allowed() || len(s.opts.Sandbox.Network.Allow) > 0
	list := make([]tool, len(s.defs))
	for i, def := range s.defs {
		list[i] = tool{Definition: def, open: network && def.Network, do: func(ctx context.Context, c call) (any, error) {
			return c.scope.calls.Call(ctx, c.tool, c.args)
		}}
	}
	return list
}

const instructions = "Runs code and commands in sandboxes, apart from the user's files and programs. " +
	"sandbox_run runs one program in a fresh sandbox; " +
	"the other sandbox_ tools work in a sandbox that keeps its files below /workspace. " +
	"Start with sandbox_open, whose note describes the sandbox, and pass its sandbox_id to the other tools. " +
	"Files of the user's machine are not in the sandbox: write them with sandbox_fs_write. " +
	"If an answer is pending, the call is still running: get its result with task_result."

// methodInitialize starts a session.
const methodInitialize = "initialize"

// beginScopes is middleware to create a session's scope when the session starts. It also records the use of HTTP
// sessions.
func (s *Server) beginScopes(find resolver) mcp.Middleware {
	return func(next mcp.MethodHandler) mcp.MethodHandler {
		return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
			ss, ok := req.GetSession().(*mcp.ServerSession)
			s.use(ss)
			defer s.use(ss)
			res, err := next(ctx, method, req)
			if ok && err == nil && method == methodInitialize {
				_, err = find(ctx, ss, req.GetExtra())
			}
			return res, err
		}
	}
}

// protect is middleware to recover panics of handlers, because they would crash the server.
func (s *Server) protect(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
		defer bound.Recovered(ctx, s.log, "a request panicked", func() {
			res, err = nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the request failed inside Workcell"}
		}, "method", method)
		return next(ctx, method, req)
	}
}

// quiet returns a logger for the SDK. To keep mistakes of clients from flooding an operator's log, it logs everything
// at debug level.
func quiet(l *slog.Logger) *slog.Logger { return slog.New(quietHandler{l.Handler()}) }

type quietHandler struct{ slog.Handler }

func (h quietHandler) Enabled(ctx context.Context, _ slog.Level) bool {
	return h.Handler.Enabled(ctx, slog.LevelDebug)
}

func (h quietHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return h.Handler.Handle(ctx, r)
}
