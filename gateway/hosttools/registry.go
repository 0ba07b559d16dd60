package hosttools

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/suggest"
)

// Registry holds the tools of a program and the operator's policy. It is safe for concurrent use.
type Registry struct {
	sources []Source
	o       Options
}

// Options configures New. The field comments describe the zero values.
type Options struct {
	Policy         Policy
	Log            *slog.Logger         // if nil, slog.Default
	TracerProvider trace.TracerProvider // if nil, the global provider
}

// Policy is the operator's policy. It overrides the rules of every agent.
type Policy struct {
	Deny   []string `yaml:"deny"` // tool patterns
	Ask    []string `yaml:"ask"`
	Limits Limits   `yaml:"limits"` // maximum limits for agents
}

// New returns a registry of sources. Close closes the sources. For an invalid or duplicate name, a policy pattern that
// cannot match, or a limit out of range, the error wraps backend.ErrInvalid.
func New(o *Options, sources ...Source) (*Registry, error) {
	r := &Registry{sources: slices.Clone(sources), o: *cmp.Or(o, &Options{})}
	r.o.Log = cmp.Or(r.o.Log, slog.Default())
	r.o.TracerProvider = cmp.Or(r.o.TracerProvider, otel.GetTracerProvider())
	for _, p := range slices.Concat(r.o.Policy.Deny, r.o.Policy.Ask) {
		// A deny pattern without a match would silently deny nothing.
		problem := rules.ToolPattern(p).Check()
		if problem == nil && len(sources) > 0 && !r.hasServerOf(rules.ToolPattern(p)) {
			problem = r.unknownServer(rules.ToolPattern(p))
		}
		if problem != nil {
			return nil, fmt.Errorf("%w: host tools: the policy's pattern %q: %s; %s",
				backend.ErrInvalid, plain(p, 80), problem.Message, problem.Hint)
		}
	}
	for _, problem := range r.o.Policy.Limits.Problems() {
		return nil, fmt.Errorf("%w: host tools: the policy's limit %s", backend.ErrInvalid, problem.Message)
	}
	seen := map[string]bool{}
	for _, s := range sources {
		if problem := rules.ServerProblem(s.Name()); problem != "" {
			return nil, fmt.Errorf("%w: host tools: server %q: %s", backend.ErrInvalid, plain(s.Name(), 80), problem)
		}
		if seen[s.Name()] {
			return nil, fmt.Errorf("%w: host tools: duplicate server %q", backend.ErrInvalid, s.Name())
		}
		seen[s.Name()] = true
	}
	return r, nil
}

// Close closes the sources. A nil registry has none.
func (r *Registry) Close() error {
	if r == nil {
		return nil
	}
	var errs []error
	for _, s := range r.sources {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}

// Servers returns the names of the sources.
func (r *Registry) Servers() []string {
	names := make([]string, len(r.sources))
	for i, s := range r.sources {
		names[i] = s.Name()
	}
	return names
}

// Check checks rules against the existing servers and tools. It reports missing servers, missing tools, and duplicate
// tool names. It starts the servers used in the rules. The error means a server is unavailable.
func (r *Registry) Check(ctx context.Context, wanted Rules) (Problems, error) {
	_, problems, err := r.granted(ctx, wanted)
	return problems, err
}

// granted returns the allowed tools, sorted by their names in sandboxes, and the problems of the rules.
func (r *Registry) granted(ctx context.Context, wanted Rules) ([]*entry, Problems, error) {
	known, err := r.known(ctx, wanted)
	if err != nil {
		return nil, nil, err
	}
	problems := r.unmatched(known, wanted)
	var granted []*entry
	byName := map[string]*entry{}
	for _, e := range known {
		if e.rule = ruleOf(wanted, e.tool); e.rule < 0 || e.left != nil {
			continue
		}
		if other := byName[e.tool.MCPName()]; other != nil {
			problems.Add(fmt.Sprintf("allow[%d].tool", e.rule), "allow one of the two",
				"%s and %s have the same name in the sandbox, %s", other.tool.FullName(), e.tool.FullName(), e.tool.MCPName())
			continue
		}
		byName[e.tool.MCPName()] = e
		granted = append(granted, e)
	}
	if len(granted) > maxTools {
		problems.Add("allow", "", "the rules allow %d tools, the limit is %d", len(granted), maxTools)
	}
	size := 0
	for _, e := range granted {
		data, err := json.Marshal(mcpTool(e.tool))
		if err != nil {
			return nil, nil, fmt.Errorf("host tool %s: %w", e.tool.FullName(), err)
		}
		size += len(data)
	}
	if size > maxDefinitions {
		problems.Add("allow", "allow fewer tools", "the definitions of the allowed tools have %d bytes, the limit is %d",
			size, maxDefinitions)
	}
	slices.SortFunc(granted, func(a, b *entry) int { return strings.Compare(a.tool.MCPName(), b.tool.MCPName()) })
	return granted, problems, nil
}

// known returns the tools of the servers used in the rules.
func (r *Registry) known(ctx context.Context, wanted Rules) ([]*entry, error) {
	var all []*entry
	for _, s := range r.sources {
		used := func(rule rules.Tool) bool { return rules.ToolPattern(rule.Tool).OfServer(s.Name()) }
		if !slices.ContainsFunc(wanted.Allow, used) {
			continue
		}
		tools, err := s.Tools(ctx)
		if err != nil {
			return nil, fmt.Errorf("host tools of server %s: %w", s.Name(), err)
		}
		for i, t := range tools {
			t.Server = s.Name()
			e := freeze(t)
			if i >= maxServerTools {
				e.left = fmt.Errorf("server %s has more than %d tools", s.Name(), maxServerTools)
			}
			all = append(all, e)
			if e.left != nil {
				r.o.Log.WarnContext(ctx, "skipping a host tool", "server", s.Name(), "tool", plain(t.Name, 80), "error", e.left)
			}
			if i > maxServerTools {
				break
			}
		}
	}
	return all, nil
}

// unmatched returns problems for rules without a matching tool, and for rules with only excluded tools.
func (r *Registry) unmatched(known []*entry, wanted Rules) Problems {
	var problems Problems
	for i, rule := range wanted.Allow {
		field, p := fmt.Sprintf("allow[%d].tool", i), rules.ToolPattern(rule.Tool)
		if !r.hasServerOf(p) {
			problem := r.unknownServer(p)
			problem.Field = field
			problems = append(problems, problem)
			continue
		}
		at := slices.IndexFunc(known, func(e *entry) bool { return e.left == nil && p.Match(e.tool.Server, e.tool.Name) })
		if at >= 0 {
			continue
		}
		message, hint := fmt.Sprintf("no tool matches %q", plain(rule.Tool, 80)), ""
		var names []string
		for _, e := range known {
			if p.Exact() && e.left != nil && p.Match(e.tool.Server, e.tool.Name) {
				message = fmt.Sprintf("tool %s is not available: %v", p, e.left)
			} else if e.left == nil && p.OfServer(e.tool.Server) {
				names = append(names, e.tool.FullName())
			}
		}
		if near, ok := suggest.Closest(rule.Tool, names); ok && p.Exact() {
			hint = fmt.Sprintf("did you mean %q?", near)
		}
		problems.Add(field, hint, "%s", message)
	}
	return problems
}

// hasServerOf reports whether the pattern may match tools of a source.
func (r *Registry) hasServerOf(p rules.ToolPattern) bool {
	return slices.ContainsFunc(r.Servers(), p.OfServer)
}

func (r *Registry) unknownServer(p rules.ToolPattern) *hint.Problem {
	known := r.Servers()
	todo := "add a server to the --host-tools file"
	if len(known) > 0 {
		todo = suggest.Hint(p.Server(), known)
	}
	return &hint.Problem{Message: fmt.Sprintf("unknown server %q", plain(p.Server(), 80)), Hint: todo}
}

// ruleOf returns the index of the rule for a tool: the exact rule, or else the first match. It returns -1 if no rule
// matches.
func ruleOf(wanted Rules, t Tool) int {
	matches := func(exact bool) func(rules.Tool) bool {
		return func(rule rules.Tool) bool {
			p := rules.ToolPattern(rule.Tool)
			return p.Exact() == exact && p.Match(t.Server, t.Name)
		}
	}
	if i := slices.IndexFunc(wanted.Allow, matches(true)); i >= 0 {
		return i
	}
	return slices.IndexFunc(wanted.Allow, matches(false))
}

// matchAny reports whether one of the patterns matches a tool.
func matchAny(patterns []string, t Tool) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return rules.ToolPattern(p).Match(t.Server, t.Name) })
}

// entry is a tool of a set.
type entry struct {
	tool     Tool
	left     error // reason why the tool is excluded
	rule     int   // index of the allowing rule
	resolved *jsonschema.Resolved
	output   *jsonschema.Resolved // nil without an output schema
	spelling *spelling

	deny, mustAsk bool          // set by the operator
	when, ask     *expr.Program // nil without a condition
	maxCalls      int64
	vars          map[string]any // the variable tool of conditions
	unclear       sync.Once      // limits reports of failed conditions
}

// freeze returns a bounded copy of a tool.
func freeze(t Tool) *entry {
	e := &entry{tool: t}
	fail := func(format string, args ...any) *entry {
		e.left = fmt.Errorf(format, args...)
		return e
	}
	switch name := t.MCPName(); {
	case t.Name == "" || len(name) > maxNameBytes:
		return fail("its name in the sandbox has %d characters, must have 1 to %d", len(name), maxNameBytes)
	case rules.ReservedTool(t.Name) || rules.ReservedTool(name):
		return fail("a tool with this name cannot be called from a sandbox")
	case t.Handle == nil:
		return fail("it has no handler")
	}
	e.tool.Title, e.tool.Description = plain(t.Title, maxNameBytes*2), plain(t.Description, maxDescription)
	in := t.Input
	if in == nil {
		in = map[string]any{"type": "object"}
	}
	var err error
	if e.tool.Input, err = cleanSchema(in); err != nil {
		return fail("input: %w", err)
	}
	if kind := e.tool.Input["type"]; kind != nil && kind != "object" {
		return fail("input: the schema must have type object")
	}
	e.tool.Input["type"] = "object"
	if e.resolved, err = resolve(e.tool.Input); err != nil {
		return fail("input: %w", err)
	}
	e.spelling = &spelling{meant: map[string]string{}, below: map[string]bool{}}
	e.spelling.learn(e.tool.Input, "")
	if t.Output != nil {
		if e.tool.Output, err = cleanSchema(t.Output); err != nil {
			return fail("output: %w", err)
		}
		if e.output, err = resolve(e.tool.Output); err != nil {
			return fail("output: %w", err)
		}
	}
	e.vars = map[string]any{
		"server": t.Server, "name": t.Name, "read_only": t.ReadOnly, "destructive": t.Destructive, "open_world": t.Network,
	}
	return e
}
