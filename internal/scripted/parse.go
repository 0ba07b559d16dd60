package scripted

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// fileFormat is what a script file has to keep to.
func fileFormat() yamlnode.Format {
	return yamlnode.Format{Name: "the file", Single: "give each script its own file", FirstLine: 1, MaxDepth: 64, MaxValues: 200_000}
}

// Parse reads a script. The error is [hint.Problems], with everything that is wrong.
func Parse(file string, src []byte) (*Script, error) {
	var root *yaml.Node
	text, problem := yamlnode.Text(src, maxFileBytes)
	if problem == nil {
		root, problem = fileFormat().Parse(text)
	}
	if problem == nil && root == nil {
		problem = &hint.Problem{Message: "the file is empty"}
	}
	if problem != nil {
		problem.File = file
		return nil, hint.Problems{problem}
	}
	p := &parser{Source: yamlnode.NewSource(file, text)}
	if err := p.environments(); err != nil {
		return nil, err
	}
	var s *Script
	if fileFormat().Check(root, p.fail) {
		s = p.script(root)
	}
	if len(p.problems) > 0 {
		p.problems.Sort(file)
		return nil, p.problems
	}
	return s, nil
}

// parser collects problems while it walks the file's nodes.
type parser struct {
	*yamlnode.Source
	problems hint.Problems
	when     *expr.Env // what conditions of invocations may use
	turnEnv  *expr.Env // what everything else may use
}

func (p *parser) environments() (err error) {
	if p.when, err = expr.New(expr.Var{Name: "input", Map: true}, expr.Var{Name: "prompt"}); err != nil {
		return err
	}
	p.turnEnv, err = p.when.With(expr.Var{Name: "last"}, expr.Var{Name: "outputs"})
	return err
}

func (p *parser) fail(n *yaml.Node, advice, format string, args ...any) {
	p.problems = append(p.problems, &hint.Problem{
		File: p.File, Line: n.Line, Column: n.Column, Message: fmt.Sprintf(format, args...), Hint: advice,
	})
}

func (p *parser) problem(n *yaml.Node, format string, args ...any) { p.fail(n, "", format, args...) }

// failExpr reports an error of package expr, at the place inside the scalar n that it names.
func (p *parser) failExpr(n *yaml.Node, err error) {
	var e *expr.Error
	if errors.As(err, &e) && e.Node != nil {
		at := *n
		at.Line, at.Column = p.Place(n, e.Offset)
		n = &at
	}
	p.problem(n, "%v", err)
}

// expression compiles a condition.
func (p *parser) expression(n *yaml.Node, what string, env *expr.Env) *expr.Program {
	src := p.str(n, what)
	if src == "" {
		return nil
	}
	prog, err := env.At(n, 0).Condition(src)
	if err != nil {
		p.failExpr(n, fmt.Errorf("%s: %w", what, err))
	}
	return prog
}

func (p *parser) value(n *yaml.Node) *expr.Value { return p.turnEnv.Tree(n, p.failExpr) }

func (p *parser) script(root *yaml.Node) *Script {
	s := &Script{file: p.File, agents: map[string][]*invocation{}}
	fields := p.fields(root, "a script", "description", "agents")
	if n := fields["description"]; n != nil {
		p.str(n, "description")
	}
	agents := fields["agents"]
	if agents == nil {
		if root.Kind == yaml.MappingNode {
			p.problem(root, "a script requires agents")
		}
		return s
	}
	if agents.Kind != yaml.MappingNode {
		p.problem(agents, "agents must be a mapping")
	}
	for key, value := range yamlnode.Pairs(agents) {
		name := key.Value
		if name == "" || strings.ContainsAny(name, "/ \t\n") {
			p.problem(key, "invalid agent name %q", name)
		}
		s.agents[name] = p.invocations(value, name)
	}
	if len(s.agents) == 0 {
		p.problem(agents, "agents is empty")
	}
	return s
}

func (p *parser) invocations(n *yaml.Node, agent string) []*invocation {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		p.problem(n, "agent %s: expected a list of invocations", agent)
		return nil
	}
	var out []*invocation
	for item := range yamlnode.Items(n) {
		inv := &invocation{line: item.Line}
		turns := item
		if item.Kind == yaml.MappingNode {
			fields := p.fields(item, "an invocation", "when", "turns")
			if w := fields["when"]; w != nil {
				inv.when = p.expression(w, "when", p.when)
			}
			if turns = fields["turns"]; turns == nil {
				p.problem(item, "an invocation requires turns")
				continue
			}
		}
		inv.turns = p.turns(turns, agent)
		out = append(out, inv)
	}
	return out
}

func (p *parser) turns(n *yaml.Node, agent string) []*turn {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		p.problem(n, "agent %s: an invocation is a list of turns", agent)
		return nil
	}
	out := make([]*turn, len(n.Content))
	for i, item := range n.Content {
		item = yamlnode.Follow(item)
		out[i] = p.turn(item)
		last := i == len(n.Content)-1
		switch {
		case item.Kind != yaml.MappingNode:
		case last && len(out[i].calls) > 0:
			p.problem(item, "the last turn must answer with text or json, not call a tool")
		case !last && len(out[i].calls) == 0:
			p.problem(item, "a turn without a tool call ends the invocation; the turns after it would never be played")
		}
	}
	return out
}

func (p *parser) turn(n *yaml.Node) *turn {
	t := &turn{line: n.Line}
	f := p.fields(n, "a turn", "tool", "input", "calls", "text", "json", "expect")
	if n.Kind != yaml.MappingNode {
		return t
	}
	if e := f["expect"]; e != nil {
		t.expect = p.expectations(e)
	}
	switch {
	case f["tool"] != nil && f["calls"] != nil:
		p.problem(n, "a turn cannot have both tool and calls")
	case f["tool"] != nil:
		t.calls = []*call{p.call(f["tool"], f["input"])}
	case f["input"] != nil:
		p.problem(f["input"], "input requires tool")
	case f["calls"] != nil:
		t.calls = p.calls(f["calls"])
	}
	if f["text"] != nil && f["json"] != nil {
		p.problem(n, "a turn cannot have both text and json")
	}
	if x := f["text"]; x != nil && p.str(x, "text") != "" {
		t.text = p.value(x)
	}
	if x := f["json"]; x != nil {
		t.json = p.value(x)
		if f["tool"] != nil || f["calls"] != nil {
			p.problem(x, "json is an answer and cannot be used with a tool call")
		}
	}
	if f["tool"] == nil && f["calls"] == nil && f["text"] == nil && f["json"] == nil {
		p.problem(n, "a turn requires tool, calls, text, or json")
	}
	return t
}

func (p *parser) expectations(n *yaml.Node) []*expr.Program {
	if n.Kind != yaml.SequenceNode {
		return []*expr.Program{p.expression(n, "expect", p.turnEnv)}
	}
	var out []*expr.Program
	for item := range yamlnode.Items(n) {
		out = append(out, p.expression(item, "expect", p.turnEnv))
	}
	return out
}

func (p *parser) calls(n *yaml.Node) []*call {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		p.problem(n, "calls must be a list of {tool, input}")
	}
	out := []*call{}
	for item := range yamlnode.Items(n) {
		f := p.fields(item, "a call", "tool", "input")
		if f["tool"] == nil {
			p.problem(item, "a call requires tool")
			continue
		}
		out = append(out, p.call(f["tool"], f["input"]))
	}
	return out
}

func (p *parser) call(tool, input *yaml.Node) *call {
	c := &call{tool: p.str(tool, "tool")}
	if c.tool == "" {
		p.problem(tool, "tool must be the name of a tool")
	}
	if input != nil && input.Kind != yaml.MappingNode {
		p.problem(input, "the input of a tool must be a mapping")
	} else if input != nil {
		c.input = p.value(input)
	}
	return c
}

// fields returns the values of a mapping with the known keys.
func (p *parser) fields(n *yaml.Node, what string, known ...string) map[string]*yaml.Node {
	out := map[string]*yaml.Node{}
	if n.Kind != yaml.MappingNode {
		p.problem(n, "%s must be a mapping", what)
	}
	for key, value := range yamlnode.Pairs(n) {
		if !slices.Contains(known, key.Value) {
			p.problem(key, "%s has no field %q, available: %s", what, key.Value, strings.Join(known, ", "))
			continue
		}
		out[key.Value] = value
	}
	return out
}

func (p *parser) str(n *yaml.Node, what string) string {
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
		p.problem(n, "%s must be a string", what)
		return ""
	}
	return n.Value
}
