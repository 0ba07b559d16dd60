package scripted

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/expr"
)

// Parse reads a script. The error is [Problems], with everything that is wrong.
func Parse(file string, src []byte) (*Script, error) {
	p := &parser{file: file, envs: newEnvs()}
	if len(src) > maxFileBytes {
		p.problem(nil, "larger than %d bytes", maxFileBytes)
		return nil, p.problems
	}
	root := p.document(src)
	var s *Script
	if root != nil {
		s = p.script(root)
	}
	if len(p.problems) > 0 {
		slices.SortStableFunc(p.problems, func(a, b *Problem) int {
			return cmp.Or(a.Line-b.Line, a.Column-b.Column)
		})
		return nil, p.problems
	}
	return s, nil
}

// parser collects problems while it walks the file's nodes.
type parser struct {
	file     string
	problems Problems
	envs
}

func (p *parser) problem(n *yaml.Node, format string, args ...any) {
	pr := &Problem{File: p.file, Message: fmt.Sprintf(format, args...)}
	if n != nil {
		pr.Line, pr.Column = n.Line, n.Column
	}
	p.problems = append(p.problems, pr)
}

// document returns the root node of the file's only document, nil after a problem.
func (p *parser) document(src []byte) *yaml.Node {
	dec := yaml.NewDecoder(bytes.NewReader(src))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		p.problem(nil, "the file is empty")
		return nil
	case err != nil:
		p.syntax(err)
		return nil
	}
	var more yaml.Node
	if err := dec.Decode(&more); err == nil {
		p.problem(&more, "only one document per file")
	} else if !errors.Is(err, io.EOF) {
		p.syntax(err)
	}
	return doc.Content[0]
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// syntax reports an error of the YAML parser with its line.
func (p *parser) syntax(err error) {
	pr := &Problem{File: p.file, Message: yamlLine.ReplaceAllString(err.Error(), "")}
	if m := yamlLine.FindStringSubmatch(err.Error()); m != nil && m[1] != "" {
		pr.Line, _ = strconv.Atoi(m[1]) // the expression admits digits only
	}
	p.problems = append(p.problems, pr)
}

func (p *parser) script(root *yaml.Node) *Script {
	s := &Script{file: p.file, agents: map[string][]*invocation{}}
	fields := p.fields(root, "a script", "description", "agents")
	if n := fields["description"]; n != nil {
		p.str(n, "description")
	}
	agents := fields["agents"]
	if agents == nil {
		if root.Kind == yaml.MappingNode {
			p.problem(root, "a script needs agents")
		}
		return s
	}
	for _, e := range p.entries(agents, "agents") {
		name := e.key.Value
		if name == "" || strings.ContainsAny(name, "/ \t\n") {
			p.problem(e.key, "%q cannot be the name of an agent", name)
		}
		s.agents[name] = p.invocations(e.value, name)
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
	for _, item := range n.Content {
		inv := &invocation{line: item.Line}
		turns := item
		if item.Kind == yaml.MappingNode {
			fields := p.fields(item, "an invocation", "when", "turns")
			if w := fields["when"]; w != nil {
				inv.when = p.expression(w, "when", p.when)
			}
			if turns = fields["turns"]; turns == nil {
				p.problem(item, "an invocation needs turns")
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
		p.problem(n, "a turn has tool or calls, not both")
	case f["tool"] != nil:
		t.calls = []*call{p.call(f["tool"], f["input"])}
	case f["input"] != nil:
		p.problem(f["input"], "input goes with tool")
	case f["calls"] != nil:
		t.calls = p.calls(f["calls"])
	}
	if f["text"] != nil && f["json"] != nil {
		p.problem(n, "a turn has text or json, not both")
	}
	if x := f["text"]; x != nil && p.str(x, "text") != "" {
		t.text = p.value(x, 0)
	}
	if x := f["json"]; x != nil {
		t.json = p.value(x, 0)
		if f["tool"] != nil || f["calls"] != nil {
			p.problem(x, "json is an answer and cannot go with a tool call")
		}
	}
	if f["tool"] == nil && f["calls"] == nil && f["text"] == nil && f["json"] == nil {
		p.problem(n, "a turn needs tool, calls, text or json")
	}
	return t
}

func (p *parser) expectations(n *yaml.Node) []*expression {
	if n.Kind != yaml.SequenceNode {
		return []*expression{p.expression(n, "expect", p.turnEnv)}
	}
	var out []*expression
	for _, item := range n.Content {
		out = append(out, p.expression(item, "expect", p.turnEnv))
	}
	return out
}

func (p *parser) calls(n *yaml.Node) []*call {
	if n.Kind != yaml.SequenceNode || len(n.Content) == 0 {
		p.problem(n, "calls is a list of {tool, input}")
		return []*call{}
	}
	out := []*call{}
	for _, item := range n.Content {
		f := p.fields(item, "a call", "tool", "input")
		if f["tool"] == nil {
			p.problem(item, "a call needs tool")
			continue
		}
		out = append(out, p.call(f["tool"], f["input"]))
	}
	return out
}

func (p *parser) call(tool, input *yaml.Node) *call {
	c := &call{tool: p.str(tool, "tool")}
	if c.tool == "" {
		p.problem(tool, "tool is the name of a tool")
	}
	switch {
	case input == nil:
		c.input = expr.Map(nil)
	case input.Kind != yaml.MappingNode:
		p.problem(input, "the input of a tool is a mapping")
		c.input = expr.Map(nil)
	default:
		c.input = p.value(input, 0)
	}
	return c
}

// entry is a pair of a mapping.
type entry struct{ key, value *yaml.Node }

// entries returns the pairs of a mapping in order, without the duplicates, which are problems.
func (p *parser) entries(n *yaml.Node, what string) []entry {
	if n.Kind != yaml.MappingNode {
		p.problem(n, "%s must be a mapping", what)
		return nil
	}
	var out []entry
	seen := map[string]bool{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		switch {
		case k.Kind != yaml.ScalarNode || k.Tag == "!!merge":
			p.problem(k, "keys must be plain strings")
		case seen[k.Value]:
			p.problem(k, "%q is there twice", k.Value)
		default:
			seen[k.Value] = true
			out = append(out, entry{k, v})
		}
	}
	return out
}

// fields returns the values of a mapping with the known keys.
func (p *parser) fields(n *yaml.Node, what string, known ...string) map[string]*yaml.Node {
	out := map[string]*yaml.Node{}
	for _, e := range p.entries(n, what) {
		if !slices.Contains(known, e.key.Value) {
			p.problem(e.key, "%s has no field %q, it has %s", what, e.key.Value, strings.Join(known, ", "))
			continue
		}
		out[e.key.Value] = e.value
	}
	return out
}

func (p *parser) str(n *yaml.Node, what string) string {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		p.problem(n, "%s must be a string", what)
		return ""
	}
	return n.Value
}
