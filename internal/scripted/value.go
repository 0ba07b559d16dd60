package scripted

import (
	"context"
	"errors"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/expr"
)

// envs are the variables that expressions may use.
type envs struct {
	when    *expr.Env // conditions of invocations
	turnEnv *expr.Env // everything else
}

func newEnvs() envs {
	when, err := expr.New(expr.Var{Name: "input", Map: true}, expr.Var{Name: "prompt"})
	if err == nil {
		var turn *expr.Env
		if turn, err = when.With(expr.Var{Name: "last"}, expr.Var{Name: "outputs"}); err == nil {
			return envs{when: when, turnEnv: turn}
		}
	}
	panic("scripted: " + err.Error()) // the names above are constants
}

// expression is a CEL expression and where it stands.
type expression struct {
	line int
	src  string
	prog *expr.Program
}

// expression compiles a condition.
func (p *parser) expression(n *yaml.Node, what string, env *expr.Env) *expression {
	src := p.str(n, what)
	if src == "" {
		return nil
	}
	prog, err := env.Condition(src)
	if err != nil {
		p.expressionProblem(n, what+": ", err)
		return nil
	}
	return &expression{line: n.Line, src: src, prog: prog}
}

// holds evaluates the condition.
func (e *expression) holds(ctx context.Context, vars map[string]any) (bool, error) {
	return e.prog.EvalBool(ctx, vars)
}

func (p *parser) expressionProblem(n *yaml.Node, prefix string, err error) {
	var ee *expr.Error
	if errors.As(err, &ee) && n.Style&(yaml.LiteralStyle|yaml.FoldedStyle|yaml.DoubleQuotedStyle) == 0 {
		at := *n // without escapes and line breaks the offset is a column
		at.Column += ee.Offset
		if n.Style&yaml.SingleQuotedStyle != 0 {
			at.Column++
		}
		n = &at
	}
	p.problem(n, "%s%v", prefix, err)
}

// value compiles a tree of YAML nodes. After a problem the result must not be used.
func (p *parser) value(n *yaml.Node, depth int) *expr.Value {
	if depth > expr.MaxDepth {
		p.problem(n, "nested deeper than %d", expr.MaxDepth)
		return expr.Const(nil)
	}
	switch n.Kind {
	case yaml.SequenceNode:
		items := []*expr.Value{}
		for _, item := range n.Content {
			items = append(items, p.value(item, depth+1))
		}
		return expr.List(items)
	case yaml.MappingNode:
		items := map[string]*expr.Value{}
		for _, e := range p.entries(n, "a value") {
			items[e.key.Value] = p.value(e.value, depth+1)
		}
		return expr.Map(items)
	case yaml.ScalarNode:
		return p.scalar(n)
	default:
		p.problem(n, "anchors and aliases are not supported")
		return expr.Const(nil)
	}
}

func (p *parser) scalar(n *yaml.Node) *expr.Value {
	switch n.Tag {
	case "!!str":
		v, err := p.turnEnv.Template(n.Value)
		if err != nil {
			p.expressionProblem(n, "", err)
			return expr.Const(nil)
		}
		return v
	case "!!null":
		return expr.Const(nil)
	case "!!bool", "!!int", "!!float":
		var v any
		err := n.Decode(&v)
		if err == nil {
			v, err = expr.Normalize(v, expr.MaxBytes)
		}
		if err != nil {
			p.problem(n, "%q cannot be used: %v", n.Value, err)
			return expr.Const(nil)
		}
		return expr.Const(v)
	default:
		p.problem(n, "values of type %s are not supported, quote it to make it a string", n.Tag)
		return expr.Const(nil)
	}
}
