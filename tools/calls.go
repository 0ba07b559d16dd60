package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// Calls runs the tools without Genkit, for example for an MCP server. Definitions, handlers, and errors are the same as
// in Genkit. All methods are safe for concurrent use.
type Calls struct {
	own   *binding // holds the persistent sandboxes
	tools []*tool  // sorted by name
}

// CallArgs are the arguments of a tool call, which CallOptions.Check can reject.
type CallArgs = toolspec.Args

// CallOptions configures Plugin.Calls. The field comments describe the zero values.
type CallOptions struct {
	// Check is called before a tool runs, and again after a file was read and its size is known. If Check returns an
	// error, the error is the result of the call. If nil, all calls are allowed.
	Check func(ctx context.Context, args CallArgs) *hosttools.Error
	// MaxSeconds is the longest timeout_seconds that Check allows for a command. Schemas and notes never show a longer
	// timeout. If zero, it defaults to sandbox.MaxExecTimeout, one hour.
	MaxSeconds int64
	// ReadBytes is the default number of bytes sandbox_fs_read returns. If zero, it defaults to 262,144.
	ReadBytes int64
	// StreamChars is the maximum number of characters per output stream in one result. If zero, it defaults to 30,000.
	StreamChars int64
	// Shared reports whether other processes use the run's sandboxes (session.Options.Join), for example several servers
	// of one client. All of these processes share the sandboxes. Closing a sandbox kills all of their commands in it.
	Shared bool
	// MakeRoom is called if a sandbox cannot be opened because the sandbox limit is reached. If it returns true, the
	// call tries once more to open the sandbox. If MakeRoom is nil, the call fails.
	MakeRoom func(ctx context.Context) bool
}

// Calls returns the tools of both modes, compute and code, for the sandboxes of run. It ignores s.Mode and opens no
// sandbox. The caller owns the run and must close it with Manager.CloseScope.
func (p *Plugin) Calls(run session.Run, s Sandbox, opts *CallOptions) (*Calls, error) {
	c, opts := &Calls{}, cmp.Or(opts, &CallOptions{})
	for _, mode := range []frontmatter.Mode{frontmatter.ModeCompute, frontmatter.ModeCode} {
		cfg := s
		cfg.Mode, cfg.Snapshots = mode, s.Snapshots && mode == frontmatter.ModeCode
		b, err := p.toolbox().bind(context.Background(), cfg)
		if err != nil {
			return nil, err
		}
		b.fallback = run
		if opts.Check != nil {
			b.check = opts.Check
		}
		b.shared, b.makeRoom = opts.Shared, opts.MakeRoom
		b.maxSeconds = min(cmp.Or(opts.MaxSeconds, maxSeconds), maxSeconds)
		b.readBytes, b.streamChars = cmp.Or(opts.ReadBytes, b.readBytes), cmp.Or(opts.StreamChars, b.streamChars)
		c.own = b
		c.tools = append(c.tools, b.tools()...)
	}
	slices.SortFunc(c.tools, func(a, b *tool) int { return strings.Compare(a.Name(), b.Name()) })
	return c, nil
}

// Definitions returns the tool definitions, sorted by name.
func (c *Calls) Definitions() []hosttools.Definition {
	list := make([]hosttools.Definition, len(c.tools))
	for i, t := range c.tools {
		list[i] = t.def
	}
	return list
}

// Call runs the tool with this name. Errors the caller can act on, including an unknown name, are part of out.
// In out's JSON, the property "error" contains such an error. err is non-nil only if ctx is done.
func (c *Calls) Call(ctx context.Context, name string, args json.RawMessage) (out any, err error) {
	known := make([]string, len(c.tools))
	for i, t := range c.tools {
		if known[i] = t.Name(); known[i] == name {
			return t.run(ctx, args)
		}
	}
	fail := toolspec.Failf(toolspec.CodeNotFound, "unknown tool %q", sanitize.Clip(name)).
		WithRemediation("Call one of: " + strings.Join(known, ", ") + ".")
	return toolspec.Result{Error: fail}, nil
}

// Forget drops the records of closed sandboxes, so that they do not accumulate over many consecutive sandboxes. It
// keeps the record of the run's shared sandbox, so that the next user can be notified about the lost files.
func (c *Calls) Forget() {
	b := c.own
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.opened, func(key session.Key, s *session.Session) bool {
		gone := key.Name != record.DefaultName && s.Info().State != session.StateReady
		if gone {
			delete(b.started, s.ID())
		}
		return gone
	})
}
