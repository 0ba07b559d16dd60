package expr

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// Value is a tree of plain data whose strings may contain expressions. It is immutable and safe for concurrent use.
type Value struct {
	constant any       // a scalar without expressions
	text     []Segment // a string with at least one expression
	list     []*Value
	object   map[string]*Value
}

// Of returns the value of an expression.
func Of(p *Program) *Value { return &Value{text: []Segment{{prog: p}}} }

// Template compiles a string with optional "${ expression }" parts. If the string is a single expression, the value
// keeps the type. Otherwise the values are inserted into the text as formatted by [Text]. "$${" means the text "${".
// The error is an [*Error].
func (e *Env) Template(s string) (*Value, error) {
	if !utf8.ValidString(s) {
		return nil, &Error{Place: e.at, Msg: "the text is not valid UTF-8"}
	}
	segments, err := e.Scan(s, nil)
	if err != nil {
		return nil, err
	}
	var plain strings.Builder
	v := &Value{text: segments}
	for i, seg := range segments {
		if seg.At < 0 {
			plain.WriteString(seg.Text)
		} else if segments[i].prog, err = e.At(e.at.Node, e.at.Offset+seg.At).Compile(seg.Text); err != nil {
			return nil, err
		}
	}
	if len(v.Programs()) == 0 {
		return &Value{constant: plain.String()}, nil
	}
	return v, nil
}

// Tree compiles the data of a YAML node, with expressions in the strings. It follows aliases. It calls fail for each
// problem; afterwards the value must not be used. The node must come from Format.Read of yamlnode.
func (e *Env) Tree(n *yamlnode.Node, fail func(*yamlnode.Node, error)) *Value {
	return tree(n, fail, func(n *yamlnode.Node) (*Value, error) { return e.At(n, 0).Template(n.Value) })
}

// Data returns the data of a YAML node like Tree, but without expressions. Scalars are nil, a bool, a number, or text.
// Dates are text.
func Data(n *yamlnode.Node, fail func(*yamlnode.Node, error)) any {
	v := tree(n, fail, func(n *yamlnode.Node) (*Value, error) { return &Value{constant: n.Value}, nil })
	data, _ := v.Eval(context.Background(), nil) // without expressions, it cannot fail
	return data
}

// tree converts a YAML node to a value. text converts the strings.
func tree(n *yamlnode.Node, fail func(*yamlnode.Node, error), text func(*yamlnode.Node) (*Value, error)) *Value {
	n = yamlnode.Follow(n)
	switch n.Kind {
	case yamlnode.Mapping:
		object := map[string]*Value{}
		for key, value := range yamlnode.Pairs(n) {
			object[key.Value] = tree(value, fail, text)
		}
		return &Value{object: object}
	case yamlnode.List:
		list := make([]*Value, len(n.Content))
		for i, item := range n.Content {
			list[i] = tree(item, fail, text)
		}
		return &Value{list: list}
	}
	switch n.ShortTag() {
	case "!!null":
		return &Value{}
	case "!!bool", "!!int", "!!float":
		var v any
		if n.Decode(&v) == nil {
			if plain, err := Normalize(v, MaxBytes); err == nil {
				return &Value{constant: plain}
			}
		}
		fail(n, &Error{Place: Place{Node: n},
			Msg: fmt.Sprintf("the number %s cannot be used, write it as text", sanitize.Clip(n.Value))})
		return &Value{}
	}
	v, err := text(n)
	if err != nil {
		fail(n, err)
		return &Value{}
	}
	return v
}

// Programs returns the expressions in the value. A nil value has none.
func (v *Value) Programs() []*Program {
	if v == nil {
		return nil
	}
	var out []*Program
	for _, seg := range v.text {
		if seg.prog != nil {
			out = append(out, seg.prog)
		}
	}
	for _, item := range v.list {
		out = append(out, item.Programs()...)
	}
	for _, k := range slices.Sorted(maps.Keys(v.object)) {
		out = append(out, v.object[k].Programs()...)
	}
	return out
}

// Eval returns the data with all expressions replaced by their values. The result shares no memory with vars. The error
// is an [*Error].
func (v *Value) Eval(ctx context.Context, vars map[string]any) (any, error) {
	return v.eval(ctx, vars, newBudget())
}

// EvalString is like Eval, but returns the result as text. For a nil value, it returns "".
func (v *Value) EvalString(ctx context.Context, vars map[string]any) (string, error) {
	if v == nil {
		return "", nil
	}
	out, err := v.Eval(ctx, vars)
	if err != nil {
		return "", err
	}
	return Text(out), nil
}

func (v *Value) eval(ctx context.Context, vars map[string]any, b *budget) (_ any, err error) {
	switch {
	case v.text != nil:
		return v.evalText(ctx, vars, b)
	case v.list != nil:
		out := make([]any, len(v.list))
		for i, item := range v.list {
			if out[i], err = item.eval(ctx, vars, b); err != nil {
				return nil, err
			}
		}
		return out, nil
	case v.object != nil:
		out := make(map[string]any, len(v.object))
		for _, k := range slices.Sorted(maps.Keys(v.object)) {
			if out[k], err = v.object[k].eval(ctx, vars, b); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return v.constant, nil
}

func (v *Value) evalText(ctx context.Context, vars map[string]any, b *budget) (any, error) {
	if len(v.text) == 1 {
		return v.text[0].prog.eval(ctx, vars, b)
	}
	var text strings.Builder
	for _, seg := range v.text {
		if seg.prog == nil {
			text.WriteString(seg.Text)
			continue
		}
		part, err := seg.prog.eval(ctx, vars, b)
		if err != nil {
			return nil, err
		}
		text.WriteString(Text(part))
		if text.Len() > MaxBytes {
			return nil, &Error{Place: seg.prog.Place, Msg: fmt.Sprintf("the text has more than %d bytes", MaxBytes),
				Err: ErrLimit}
		}
	}
	return text.String(), nil
}
