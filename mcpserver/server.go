package mcpserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/interrupt"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

// DefaultIdleTimeout is that of Options.
const DefaultIdleTimeout = 30 * time.Minute

// sweepEvery is how often idle sessions are looked for.
const sweepEvery = time.Minute

// maxCalls bounds the calls of one scope that run at once, pending ones included.
const maxCalls = 64

// closeTimeout bounds the removal of a scope's sandboxes.
const closeTimeout = 60 * time.Second

// Options refine New. The zero value of a field means what its comment says; a negative number is an error.
type Options struct {
	// Sandbox describes the sandboxes; its Mode and Session are ignored. The zero value is a Python sandbox
	// without network.
	Sandbox tools.Sandbox
	// Policy refuses calls before they reach a sandbox. Nil is DefaultPolicy.
	Policy *Policy
	// Tasks are what execute_task can run, sorted by name. Without any there is no such tool.
	Tasks []Task
	// RunTask runs a task to its end, or to that of ctx, which carries the run whose sandboxes the task is to use
	// (session.RunFromContext) and leave open. If the caller can correct a failure, it must be a *hosttools.Error.
	// RunTask may be called concurrently, and must not be nil when there are Tasks.
	RunTask func(ctx context.Context, req TaskRequest) (TaskResult, error)
	// Diff returns what changed in a sandbox since it began with a copy of a directory; nil when it began with none. Nil
	// stands for a function that always returns that.
	Diff func(ctx context.Context, sandbox *session.Session) (*patch.Patch, error)
	// OnClose is called when the sandboxes of a run were closed: that of a session, or of a task. Nil does nothing.
	OnClose func(session.Run)
	// IdleTimeout is how long a sandbox, or a session of execute_task, may be idle before it is closed. Zero is
	// DefaultIdleTimeout.
	IdleTimeout time.Duration
	// Shared: other servers with the same tokens serve the same HTTP clients from revision 2026-07-28 on. The managers
	// of all of them must have session.Options.Join. Close leaves the sandboxes of those clients to the others.
	Shared bool
	// Version is sent to clients. Empty is "dev".
	Version string
	// Logger is for operators. Nil discards.
	Logger *slog.Logger
}

// Server serves MCP clients. All methods may be called concurrently. New starts one goroutine, the sweep of idle
// sessions; Close ends it.
type Server struct {
	manager *session.Manager
	opts    Options
	policy  Policy
	log     *slog.Logger
	plugin  *tools.Plugin
	defs    []toolspec.Definition
	base    session.Request // what holds for every sandbox, also of tasks

	room       sync.Mutex    // guards spareAfter; held while one sandbox is replaced by another
	spareAfter time.Duration // the constant, but in tests

	rounds interrupt.Rounds[*job] // questions to users whose clients make a call again with the answers

	maxWait, keepAfter time.Duration // the constants, but in tests

	// ctx ends with the server. It is kept because it is the life of the server's goroutines.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex // guards the fields below; never held across a call to a sandbox
	scopes map[*scope]struct{}
	owners map[string]*scope             // of requests without session, by owner
	bound  map[*mcp.ServerSession]*scope // of HTTP sessions
	jobs   map[string]*job               // running and finished calls by task_id
	closed bool                          // no new scopes; Close or Detach decides about the sandboxes of those there are
}

// New makes a server on m, which stays the caller's to close, after the server. opts may be nil.
func New(m *session.Manager, opts *Options) (*Server, error) {
	if m == nil {
		return nil, errors.New("mcpserver: no session manager")
	}
	var o Options
	if opts != nil {
		o = *opts
	}
	if err := o.complete(); err != nil {
		return nil, err
	}
	s := &Server{
		manager: m, opts: o, policy: *o.Policy, log: o.Logger, plugin: &tools.Plugin{Manager: m, Logger: o.Logger},
		spareAfter: spareAfter, maxWait: maxWait, keepAfter: keepAfter,
		scopes: map[*scope]struct{}{}, owners: map[string]*scope{}, bound: map[*mcp.ServerSession]*scope{},
		jobs: map[string]*job{},
	}
	if err := s.policy.compile(); len(err) > 0 {
		return nil, err
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

// callOptions returns the options of the calls of a scope.
func (s *Server) callOptions(sc *scope) *tools.CallOptions {
	return &tools.CallOptions{
		Shared: sc != nil && sc.shared(), Check: s.checker(sc), MaxSeconds: int64(s.policy.Limits.ExecTimeout / time.Second), ReadBytes: readBytes, StreamChars: streamChars, MakeRoom: s.makeRoom,
	}
}

// complete fills in what was left out.
func (o *Options) complete() error {
	if o.Policy == nil {
		p := DefaultPolicy()
		o.Policy = &p
	}
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

// Close ends the calls under way and closes all sandboxes that clients opened. Closing twice is no error; ctx does not
// shorten the clean-up.
func (s *Server) Close(ctx context.Context) error { return s.end(ctx, true) }

// Detach ends the calls under way and leaves the sandboxes to the session manager.
func (s *Server) Detach(ctx context.Context) error { return s.end(ctx, false) }

func (s *Server) end(ctx context.Context, remove bool) error {
	s.mu.Lock()
	s.closed = true
	scopes := slices.Collect(maps.Keys(s.scopes))
	s.mu.Unlock()
	s.cancel()
	var errs []error
	for _, sc := range scopes {
		errs = append(errs, s.endScope(ctx, sc, remove))
	}
	s.wg.Wait()
	return errors.Join(errs...)
}

// resolver finds the scope of a request.
type resolver func(ctx context.Context, ss *mcp.ServerSession, extra *mcp.RequestExtra) (*scope, error)

// build makes an SDK server whose requests belong to the scopes that find returns. transport is what spans call it.
func (s *Server) build(find resolver, transport string) *mcp.Server {
	srv := mcp.NewServer(&mcp.Implementation{
		Name: "workcell", Title: "Workcell sandboxes", Version: s.opts.Version,
	}, &mcp.ServerOptions{
		Instructions: instructions, Logger: quiet(s.log), Capabilities: &mcp.ServerCapabilities{
			Tools: &mcp.ToolCapabilities{}, Resources: &mcp.ResourceCapabilities{},
		},
		// What one client sees is nothing for another, nor for a cache between them.
		SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.CacheScope = "private" },
	})
	network := s.opts.Sandbox.Network.Allowed() || len(s.opts.Sandbox.Network.Allow) > 0
	for _, def := range s.defs {
		s.addTool(srv, find, def, network && def.Network, s.callSandboxTool)
	}
	s.addTaskTools(srv, find)
	s.addPendingTools(srv, find)
	s.addResources(srv, find)
	srv.AddReceivingMiddleware(s.traced(transport), s.protect, s.beginScopes(find))
	return srv
}

const instructions = "Runs code and commands in sandboxes, apart from the user's files and programs. sandbox_run runs one program in a " +
	"fresh sandbox; the other sandbox_ tools work in a sandbox that keeps its files below /workspace. Start with " +
	"sandbox_open, whose note describes the sandbox, and pass its sandbox_id to the other tools. " +
	"Files of the user's machine are not in the sandbox: write them with sandbox_fs_write. " +
	"If an answer is pending, the call is still running: get its result with task_result."

// methodInitialize begins a session.
const methodInitialize = "initialize"

// beginScopes is middleware that makes the scope of a session when the session begins, not when it is first needed, and
// notes the use of HTTP sessions.
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

// protect is middleware that keeps a panic of a handler from ending the server.
func (s *Server) protect(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (res mcp.Result, err error) {
		defer func() {
			if r := recover(); r != nil {
				s.log.ErrorContext(ctx, "a request panicked", "method", method, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
				res, err = nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the request failed inside Workcell"}
			}
		}()
		return next(ctx, method, req)
	}
}

// quiet returns a logger for the SDK, to which everything is a debugging message. What the SDK logs as errors are
// mostly mistakes of clients, who could fill an operator's log with them.
func quiet(l *slog.Logger) *slog.Logger { return slog.New(quietHandler{l.Handler()}) }

type quietHandler struct{ slog.Handler }

func (h quietHandler) Enabled(ctx context.Context, _ slog.Level) bool {
	return h.Handler.Enabled(ctx, slog.LevelDebug)
}

func (h quietHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return h.Handler.Handle(ctx, r)
}
