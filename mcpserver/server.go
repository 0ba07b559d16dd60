package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// Defaults of Options.
const (
	DefaultIdleTimeout = 30 * time.Minute
	DefaultSweepEvery  = time.Minute
	// DefaultMaxCalls bounds the calls of one scope that are under way at once.
	DefaultMaxCalls = 64
)

// closeTimeout bounds the removal of a scope's sandboxes.
const closeTimeout = 60 * time.Second

// Options refine New. The zero value of a field means what its comment says; a negative number is an error.
type Options struct {
	// Sandbox describes the sandboxes; its Mode and Session are ignored. The zero value is a Python sandbox
	// without network.
	Sandbox tools.Sandbox
	// Policy refuses calls before they reach a sandbox. Nil is DefaultPolicy.
	Policy *Policy
	// Runner runs the tasks of execute_task, a tool that is there when Tasks lists any. Nil: there are none.
	Runner Runner
	// IdleTimeout is how long a sandbox, or a session of execute_task, may be idle before it is closed. Zero is
	// DefaultIdleTimeout.
	IdleTimeout time.Duration
	// SweepEvery is how often idle sessions are looked for. Zero is DefaultSweepEvery.
	SweepEvery time.Duration
	// MaxCalls bounds the calls of one client that are under way at once. Zero is DefaultMaxCalls.
	MaxCalls int
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

	room       sync.Mutex    // guards spareAfter; held while one sandbox is replaced by another
	spareAfter time.Duration // the constant, but in tests

	// ctx ends with the server. It is kept because it is the life of the server's goroutines.
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex // guards the fields below; never held across a call to a sandbox
	scopes map[*scope]struct{}
	owners map[string]*scope             // of requests without session, by owner
	bound  map[*mcp.ServerSession]*scope // of HTTP sessions
	closed bool
	ending bool // HTTP sessions end because the server does, so Close or Detach decides about their sandboxes
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
		spareAfter: spareAfter, scopes: map[*scope]struct{}{}, owners: map[string]*scope{}, bound: map[*mcp.ServerSession]*scope{},
	}
	if err := s.policy.compile(); err != nil {
		return nil, err
	}
	s.applyPolicy()
	s.ctx, s.cancel = context.WithCancel(context.Background())
	probe, err := s.plugin.Calls(newRun(), s.opts.Sandbox, s.callOptions(nil))
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
		Check: s.checker(sc), MaxSeconds: s.policy.Limits.ExecutionSeconds, ReadBytes: readBytes, StreamChars: streamChars, MakeRoom: s.makeRoom,
	}
}

// complete fills in what was left out.
func (o *Options) complete() error {
	if o.Policy == nil {
		p := DefaultPolicy()
		o.Policy = &p
	}
	if err := errors.Join(
		fill("IdleTimeout", &o.IdleTimeout, DefaultIdleTimeout), fill("SweepEvery", &o.SweepEvery, DefaultSweepEvery),
		fill("MaxCalls", &o.MaxCalls, DefaultMaxCalls),
	); err != nil {
		return err
	}
	if o.Version == "" {
		o.Version = "dev"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Sandbox.Session = ""
	if o.Sandbox.Runtime == "" && o.Sandbox.Image == "" {
		o.Sandbox.Runtime = frontmatter.RuntimePython
	}
	if o.Sandbox.Limits.TimeoutSeconds == 0 {
		o.Sandbox.Limits.TimeoutSeconds = max(1, int64(o.IdleTimeout/time.Second))
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
	scopes := make([]*scope, 0, len(s.scopes))
	for sc := range s.scopes {
		scopes = append(scopes, sc)
	}
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

// build makes an SDK server whose requests belong to the scopes that find returns.
func (s *Server) build(find resolver) *mcp.Server {
	srv := mcp.NewServer(&mcp.Implementation{
		Name: "workcell", Title: "Workcell sandboxes", Version: s.opts.Version,
	}, &mcp.ServerOptions{
		Instructions: s.instructions(), Logger: quiet(s.log), Capabilities: &mcp.ServerCapabilities{
			Tools: &mcp.ToolCapabilities{}, Resources: &mcp.ResourceCapabilities{},
		},
		// What one client sees is nothing for another, nor for a cache between them.
		SetCacheable: func(_ context.Context, _ mcp.Request, c *mcp.Cacheable) { c.CacheScope = "private" },
	})
	for _, def := range s.defs {
		s.addTool(srv, find, def, annotationsOf(def, s.opts.Sandbox.Network.Allowed()), s.callSandboxTool)
	}
	s.addTaskTools(srv, find)
	s.addResources(srv, find)
	srv.AddReceivingMiddleware(s.protect)
	return srv
}

func (s *Server) instructions() string {
	return "Runs code and commands in sandboxes, apart from the user's files and programs. sandbox_run runs one program in a " +
		"fresh sandbox; the other sandbox_ tools work in a sandbox that keeps its files below /workspace. Start with " +
		"sandbox_open, whose note says what can be counted on, and pass its sandbox_id to the other tools. " +
		"Files of the user's machine are not in the sandbox: write them with sandbox_fs_write."
}

// protect keeps a panic of a handler from ending the server.
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
