package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/firebase/genkit/go/ai"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
)

// Calls runs the tools for hosts that speak something else than Genkit, such as an MCP server: the same definitions,
// the same handlers, the same failures. All methods may be called concurrently.
type Calls struct {
	own    *binding // the sandboxes that outlive a call
	tools  map[string]*tool
	sorted []*tool
}

// CallOptions refine Plugin.Calls. The zero value of a field means what its comment says.
type CallOptions struct {
	// Check is called before a tool runs, and again when a file was read and its size is known. A failure that it returns
	// is the answer of the call. Nil allows everything.
	Check func(ctx context.Context, args Args) *ToolError
	// MaxSeconds is the longest timeout_seconds of a command that Check lets through, so that neither schemas nor notes
	// name a longer one. Zero is that of session.MaxExecTimeout.
	MaxSeconds int64
	// ReadBytes is how much sandbox_fs_read returns unless a call says otherwise. Zero is 262,144.
	ReadBytes int64
	// StreamChars bounds the output of a command in one answer, per stream. Zero is 30,000.
	StreamChars int64
	// MakeRoom is called when a sandbox cannot be opened because there are too many; when it reports true the opening is
	// tried once more. Nil: the call fails.
	MakeRoom func(ctx context.Context) bool
}

// Calls returns the tools of both modes, compute and code, for the sandboxes of one run. s.Mode does not count. The
// caller that began the run closes it with Manager.CloseScope. Nothing is opened yet.
func (p *Plugin) Calls(run session.Run, s Sandbox, opts *CallOptions) (*Calls, error) {
	s.box = p.toolbox()
	c := &Calls{tools: map[string]*tool{}}
	for _, mode := range []frontmatter.Mode{frontmatter.ModeCompute, frontmatter.ModeCode} {
		s.Mode = mode
		b, err := s.binding()
		if err != nil {
			return nil, err
		}
		b.fallback = run
		if opts != nil {
			b.check, b.makeRoom, b.maxSeconds = opts.Check, opts.MakeRoom, min(cmp.Or(opts.MaxSeconds, maxSeconds), maxSeconds)
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
func (c *Calls) Definitions() []Definition {
	list := make([]Definition, len(c.sorted))
	for i, t := range c.sorted {
		list[i] = t.def
	}
	return list
}

// DefinitionOf describes a tool of a host's own in the way of this package's: In and Out are structs with `json`,
// `jsonschema` and `jsonschema_description` tags, and Out embeds Result.
func DefinitionOf[In, Out any](name, description string) Definition {
	in, out := inferSchemas[In, Out]()
	return Definition{Name: name, Description: description, Input: in, Output: out}
}

// Call runs a tool. What the caller can do something about is in the output, whose ToolError FailureOf returns; err is the
// end of ctx. An unknown name is an output too.
func (c *Calls) Call(ctx context.Context, name string, args json.RawMessage) (out any, err error) {
	t, ok := c.tools[name]
	if !ok {
		known := slices.Sorted(maps.Keys(c.tools))
		return Result{Error: failure(CodeNotFound, "there is no tool %q", clip(name)).withRemediation("Call one of: " + strings.Join(known, ", ") + ".")}, nil
	}
	return t.direct(ctx, args)
}

// Forget drops what is remembered of sandboxes that are closed, so that a caller with many of them in a row does not
// hold them all. The run's shared sandbox stays known: who uses it next is to be told that its files are gone.
func (c *Calls) Forget() {
	b := c.own
	b.mu.Lock()
	defer b.mu.Unlock()
	maps.DeleteFunc(b.mine, func(name string, s *session.Session) bool {
		gone := name != session.DefaultName && s.Info().State != session.StateReady
		if gone {
			delete(b.started, s.ID())
		}
		return gone
	})
}

// failed is implemented by every output, through Result.
type failed interface{ failure() *ToolError }

func (r Result) failure() *ToolError { return r.Error }

// FailureOf returns the failure that an output of Call carries; nil when it carries none.
func FailureOf(out any) *ToolError {
	if f, ok := out.(failed); ok {
		return f.failure()
	}
	return nil
}

// NewError makes a failure of a class with the remediation; empty is the class's own.
func NewError(code Code, message, remediation string) *ToolError {
	e := failure(code, "%s", message)
	if remediation != "" {
		e.Remediation = remediation
	}
	return e
}

// direct runs the tool without Genkit around it.
func (t *tool) direct(ctx context.Context, args json.RawMessage) (any, error) {
	return t.handle(&ai.ToolContext{Context: ctx}, args)
}
