package expr

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Value is a tree of plain data in which strings may depend on expressions. It is immutable and safe for concurrent use.
type Value struct {
	constant any       // when nothing below depends on an expression
	text     []segment // a string with at least one expression
	list     []*Value
	object   map[string]*Value
}

// segment is a piece of text or an expression.
type segment struct {
	text string
	prog *Program
	at   int // where the expression starts in the string, in bytes
}

// Const makes a value that never changes. v must be plain data.
func Const(v any) *Value { return &Value{constant: v} }

// List makes a list of values.
func List(items []*Value) *Value {
	for _, v := range items {
		if !v.IsConst() {
			return &Value{list: items}
		}
	}
	out := make([]any, len(items))
	for i, v := range items {
		out[i] = v.constant
	}
	return Const(out)
}

// Map makes a map of values.
func Map(items map[string]*Value) *Value {
	out := make(map[string]any, len(items))
	for k, v := range items {
		if !v.IsConst() {
			return &Value{object: items}
		}
		out[k] = v.constant
	}
	return Const(out)
}

// Template compiles a string that may hold "${ expression }". A string that is one expression and nothing else evaluates to
// the expression's value with its type; otherwise the values are written into the text as [Text] writes them. "$${"
// stands for "${". The error is an [*Error] whose Offset counts from the start of s.
func (e *Env) Template(s string) (*Value, error) {
	if !utf8.ValidString(s) {
		return nil, &Error{Msg: "the text is not valid UTF-8"}
	}
	segments, err := scan(s)
	if err != nil {
		return nil, err
	}
	plain := true
	for i := range segments {
		seg := &segments[i]
		if seg.at < 0 {
			continue
		}
		plain = false
		if seg.prog, err = e.Compile(seg.text); err != nil {
			return nil, moved(err, seg.at)
		}
	}
	if plain {
		var text strings.Builder
		for _, seg := range segments {
			text.WriteString(seg.text)
		}
		return Const(text.String()), nil
	}
	return &Value{text: segments}, nil
}

// Value compiles plain data (as [Normalize] makes it) with expressions in its strings. All errors are found and joined;
// each is an [*Error] with its Path.
func (e *Env) Value(v any) (*Value, error) { return e.value(v, "", 0) }

func (e *Env) value(v any, path string, depth int) (*Value, error) {
	if depth > MaxDepth {
		return nil, &Error{Path: path, Msg: fmt.Sprintf("nested deeper than %d", MaxDepth), Err: ErrLimit}
	}
	switch v := v.(type) {
	case string:
		out, err := e.Template(v)
		if err != nil {
			return nil, withPath(err, path)
		}
		return out, nil
	case []any:
		items, errs := make([]*Value, len(v)), make([]error, len(v))
		for i, item := range v {
			items[i], errs[i] = e.value(item, path+"["+strconv.Itoa(i)+"]", depth+1)
		}
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		return List(items), nil
	case map[string]any:
		items, errs := make(map[string]*Value, len(v)), []error(nil)
		for _, k := range sortedKeys(v) {
			item, err := e.value(v[k], joinPath(path, k), depth+1)
			items[k], errs = item, append(errs, err)
		}
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		return Map(items), nil
	}
	return Const(v), nil
}

// IsConst reports whether the value depends on no expression.
func (v *Value) IsConst() bool { return v.text == nil && v.list == nil && v.object == nil }

// Programs lists the expressions in the value with the place of each in its string.
func (v *Value) Programs() []Placed {
	var out []Placed
	for _, seg := range v.text {
		if seg.prog != nil {
			out = append(out, Placed{Program: seg.prog, Offset: seg.at})
		}
	}
	for _, item := range v.list {
		out = append(out, item.Programs()...)
	}
	for _, k := range sortedKeys(v.object) {
		out = append(out, v.object[k].Programs()...)
	}
	return out
}

// Placed is an expression and where it starts in the string that holds it, in bytes.
type Placed struct {
	*Program
	Offset int
}

// Eval returns the data with all expressions replaced by their values. The result shares nothing with vars. The error is
// an [*Error].
func (v *Value) Eval(ctx context.Context, vars map[string]any) (any, error) {
	return v.eval(ctx, vars, newBudget(), "")
}

// EvalString is Eval for a value that ends up as text.
func (v *Value) EvalString(ctx context.Context, vars map[string]any) (string, error) {
	out, err := v.Eval(ctx, vars)
	if err != nil {
		return "", err
	}
	return Text(out), nil
}

func (v *Value) eval(ctx context.Context, vars map[string]any, b *budget, path string) (any, error) {
	switch {
	case v.text != nil:
		out, err := v.evalText(ctx, vars, b)
		if err != nil {
			return nil, withPath(err, path)
		}
		return out, nil
	case v.list != nil:
		out := make([]any, len(v.list))
		for i, item := range v.list {
			var err error
			if out[i], err = item.eval(ctx, vars, b, path+"["+strconv.Itoa(i)+"]"); err != nil {
				return nil, err
			}
		}
		return out, nil
	case v.object != nil:
		out := make(map[string]any, len(v.object))
		for _, k := range sortedKeys(v.object) {
			var err error
			if out[k], err = v.object[k].eval(ctx, vars, b, joinPath(path, k)); err != nil {
				return nil, err
			}
		}
		return out, nil
	}
	return Clone(v.constant), nil
}

func (v *Value) evalText(ctx context.Context, vars map[string]any, b *budget) (any, error) {
	if len(v.text) == 1 {
		out, err := v.text[0].prog.eval(ctx, vars, b)
		return out, moved(err, v.text[0].at)
	}
	var text strings.Builder
	for _, seg := range v.text {
		if seg.prog == nil {
			text.WriteString(seg.text)
			continue
		}
		part, err := seg.prog.eval(ctx, vars, b)
		if err != nil {
			return nil, moved(err, seg.at)
		}
		text.WriteString(Text(part))
		if text.Len() > MaxBytes {
			return nil, &Error{Offset: seg.at, Msg: fmt.Sprintf("the text has more than %d bytes", MaxBytes), Err: ErrLimit}
		}
	}
	return text.String(), nil
}

func moved(err error, offset int) error {
	var e *Error
	if errors.As(err, &e) {
		return e.at(offset)
	}
	return err
}

func withPath(err error, path string) error {
	var e *Error
	if errors.As(err, &e) && path != "" {
		placed := *e
		placed.Path = path
		return &placed
	}
	return err
}

func joinPath(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
