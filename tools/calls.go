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

// Calls runs the tools for hosts that speak something else than Genkit, such as an MCP server: the same definitions,
// the same handlers, the same failures. All methods may be called concurrently.
type Calls struct {
	own    *binding // the sandboxes that outlive a call
	tools  map[string]*tool
	sorted []*tool
}

// CallArgs are the arguments of a tool call that CallOptions.Check can refuse.
type CallArgs = toolspec.Args

// CallOptions refine Plugin.Calls. The zero value of a field means what its comment says.
type CallOptions struct {
	// Check is called before a tool runs, and again when a file was read and its size is known. A failure that it returns
	// is the answer of the call. Nil allows everything.
	Check func(ctx context.Context, args CallArgs) *hosttools.Error
	// MaxSeconds is the longest timeout_seconds of a command that Check lets through, so that neither schemas nor notes
	// name a longer one. Zero is that of session.MaxExecTimeout.
	MaxSeconds int64
	// ReadBytes is how much sandbox_fs_read returns unless a call says otherwise. Zero is 262,144.
	ReadBytes int64
	// StreamChars bounds the output of a command in one answer, per stream. Zero is 30,000.
	StreamChars int64
	// Shared: other processes have to do with the run's sandboxes, too (session.Options.Join), as servers do that serve a
	// client by turns. Its sandboxes are those of all of them, and who closes one ends what any of them started in it.
	Shared bool
	// MakeRoom is called when a sandbox cannot be opened because there are too many; when it reports true the opening is
	// tried once more. Nil: the call fails.
	MakeRoom func(ctx context.Context) bool
}

// Calls returns the tools of both modes, compute and code, for the sandboxes of one run. s.Mode does not count. The
// caller that began the run closes it with Manager.CloseScope. Nothing is opened yet.
func (p *Plugin) Calls(run session.Run, s Sandbox, opts *CallOptions) (*Calls, error) {
	c := &Calls{tools: map[string]*tool{}}
	for _, mode := range []frontmatter.Mode{frontmatter.ModeCompute, frontmatter.ModeCode} {
		cfg := s
		cfg.Mode, cfg.Snapshots = mode, s.Snapshots && mode == frontmatter.ModeCode
		b, err := p.toolbox().bind(context.Background(), cfg)
		if err != nil {
			return nil, err
		}
		b.fallback = run
		if opts != nil {
			b.shared, b.check, b.makeRoom, b.maxSeconds = opts.Shared, opts.Check, opts.MakeRoom, min(cmp.Or(opts.MaxSeconds, maxSeconds), maxSeconds)
			b.readBytes, b.streamChars = cmp.Or(opts.ReadBytes, b.readBytes), cmp.Or(opts.StreamChars, b.streamChars)
		}
		c.own = b
		for _, t := range b.tools() {
			c.tools[t.Name()] = t
			c.sorted = append(c.sorted, t)
		}
	}
	slices.SortFunc(c.sorted, func(a, b *tool) int { return strings.Compare(a.Name(), b.Name()) })
	return c, nil
}

// Definitions returns what a host shows of the tools, sorted by name.
func (c *Calls) Definitions() []hosttools.Definition {
	list := make([]hosttools.Definition, len(c.sorted))
	for i, t := range c.sorted {
		list[i] = t.def
	}
	return list
}

// Call runs a tool. What the caller can do something about is in the output, whose failure toolspec.FailureOf returns;
// err is the end of ctx. An unknown name is an output too.
func (c *Calls) Call(ctx context.Context, name string, args json.RawMessage) (out any, err error) {
	t, ok := c.tools[name]
	if !ok {
		known := slices.Sorted(maps.Keys(c.tools))
		return toolspec.Result{Error: toolspec.Failf(toolspec.CodeNotFound, "unknown tool %q", sanitize.Clip(name)).WithRemediation("Call one of: " + strings.Join(known, ", ") + ".")}, nil
	}
	return t.run(ctx, args)
}

// Forget drops what is remembered of sandboxes that are closed, so that a caller with many of them in a row does not
// hold them all. The run's shared sandbox stays known: who uses it next is to be told that its files are gone.
func (c *Calls) Forget() {
	b := c.own
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.mine, func(key session.Key, s *session.Session) bool {
		gone := key.Name != record.DefaultName && s.Info().State != session.StateReady
		if gone {
			delete(b.started, s.ID())
		}
		return gone
	})
}
