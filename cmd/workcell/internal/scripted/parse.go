package scripted

import (
	"errors"
	"fmt"
	"strings"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// Parse parses a script. The error is [hint.Problems] and lists all problems.
func Parse(file string, src []byte) (*Script, error) {
	d, root := yamlnode.Format{
		Single: "give each script its own file", Empty: "a script requires agents", MaxBytes: maxFileBytes, MaxDepth: 64,
		MaxValues: 200_000,
	}.Read(file, src)
	p := &parser{Decoder: d}
	if err := p.environments(); err != nil {
		return nil, err
	}
	var s *Script
	if root != nil {
		s = p.script(root)
	}
	if err := d.Err(); err != nil {
		return nil, err
	}
	return s, nil
}

// parser parses the nodes of a script.
type parser struct {
	*yamlnode.Decoder
	when    *expr.Env // variables for conditions of invocations
	turnEnv *expr.Env // variables for all other expressions
}

func (p *parser) environments() (err error) {
	if p.when, err = expr.New(expr.Var{Name: "input", Map: true}, expr.Var{Name: "prompt"}); err != nil {
		return err
	}
	p.turnEnv, err = p.when.With(expr.Var{Name: "last"}, expr.Var{Name: "outputs"})
	return err
}

func (p *parser) problem(n *yamlnode.Node, format string, args ...any) {
	p.Fail(n, "", format, args...)
}

// failExpr reports an error of package expr at the position in the scalar n.
func (p *parser) failExpr(n *yamlnode.Node, err error) {
	if e, ok := errors.AsType[*expr.Error](err); ok && e.Node != nil {
		p.FailInside(n, e.Offset, "", "%v", err)
		return
	}
	p.problem(n, "%v", err)
}

// expression compiles a condition.
func (p *parser) expression(n *yamlnode.Node, what string, env *expr.Env) *expr.Program {
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

func (p *parser) value(n *yamlnode.Node) *expr.Value { return p.turnEnv.Tree(n, p.failExpr) }

func (p *parser) script(root *yamlnode.Node) *Script {
	s := &Script{file: p.File, agents: map[string][]*invocation{}}
	fields, ok := p.Fields(root, "a script", "description", "agents")
	if n := fields["description"]; n != nil {
		p.str(n, "description")
	}
	agents := fields["agents"]
	if agents == nil {
		if ok && !p.Bad["agents"] {
			p.problem(root, "a script requires agents")
		}
		return s
	}
	if agents.Kind != yamlnode.Mapping {
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

func (p *parser) invocations(n *yamlnode.Node, agent string) []*invocation {
	if n.Kind != yamlnode.List || len(n.Content) == 0 {
		p.problem(n, "agent %s: expected a list of invocations", agent)
		return nil
	}
	var out []*invocation
	for item := range yamlnode.Items(n) {
		inv := &invocation{line: item.Line}
		turns := item
		if item.Kind == yamlnode.Mapping {
			fields, _ := p.Fields(item, "an invocation", "when", "turns")
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

func (p *parser) turns(n *yamlnode.Node, agent string) []*turn {
	if n.Kind != yamlnode.List || len(n.Content) == 0 {
		p.problem(n, "agent %s: an invocation is a list of turns", agent)
		return nil
	}
	out := make([]*turn, len(n.Content))
	for i, item := range n.Content {
		item = yamlnode.Follow(item)
		out[i] = p.turn(item)
		last := i == len(n.Content)-1
		switch {
		case item.Kind != yamlnode.Mapping:
		case last && len(out[i].calls) > 0:
			p.problem(item, "the last turn must answer with text or json, not call a tool")
		case !last && len(out[i].calls) == 0:
			p.problem(item, "a turn without a tool call ends the invocation; the turns after it would never be played")
		}
	}
	return out
}

func (p *parser) turn(n *yamlnode.Node) *turn {
	t := &turn{line: n.Line}
	f, ok := p.Fields(n, "a turn", "tool", "input", "calls", "text", "json", "expect")
	if !ok {
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
	// A model can answer with empty text.
	if x := f["text"]; x != nil && (!yamlnode.Is(x, "!!str") || x.Value != "") && p.str(x, "text") != "" {
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

func (p *parser) expectations(n *yamlnode.Node) []*expr.Program {
	if n.Kind != yamlnode.List {
		return []*expr.Program{p.expression(n, "expect", p.turnEnv)}
	}
	var out []*expr.Program
	for item := range yamlnode.Items(n) {
		out = append(out, p.expression(item, "expect", p.turnEnv))
	}
	return out
}

func (p *parser) calls(n *yamlnode.Node) []*call {
	if n.Kind != yamlnode.List || len(n.Content) == 0 {
		p.problem(n, "calls must be a list of {tool, input}")
	}
	out := []*call{}
	for item := range yamlnode.Items(n) {
		if f, ok := p.Fields(item, "a call", "tool", "input"); f["tool"] != nil {
			out = append(out, p.call(f["tool"], f["input"]))
		} else if ok {
			p.problem(item, "a call requires tool")
		}
	}
	return out
}

func (p *parser) call(tool, input *yamlnode.Node) *call {
	c := &call{tool: p.str(tool, "tool")}
	if c.tool == "" {
		p.problem(tool, "tool must be the name of a tool")
	}
	if input != nil && input.Kind != yamlnode.Mapping {
		p.problem(input, "the input of a tool must be a mapping")
	} else if input != nil {
		c.input = p.value(input)
	}
	return c
}

func (p *parser) str(n *yamlnode.Node, what string) (text string) {
	p.Decode(n, what, &text)
	return text
}
