package workflow

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// place is the loader's position in the file, which determines the variables of expressions.
type place struct {
	env *expr.Env
	seq *sequence // nil before the first step
}

// read is an expression and its sequence.
type read struct {
	*expr.Program
	seq *sequence
}

// note remembers expressions. Their paths are checked when all steps are known.
func (l *loader) note(progs ...*expr.Program) {
	for _, p := range progs {
		l.reads = append(l.reads, read{p, l.seq})
	}
}

// value compiles a tree of data whose strings may contain expressions.
func (l *loader) value(n *yamlnode.Node) *expr.Value {
	v := l.env.Tree(n, l.failExpr)
	l.note(v.Programs()...)
	return v
}

// optional compiles the value of a key. If the key is missing, it returns nil.
func (o *object) optional(key string) *expr.Value {
	if !o.has(key) {
		return nil
	}
	return o.value(o.at[key])
}

// optionalText compiles the text of a key, for example a path or a line of input. If the key is missing, it returns
// nil.
func (o *object) optionalText(key string) *expr.Value {
	switch n := o.at[key]; {
	case n != nil && n.Kind == yamlnode.Scalar:
		return o.literal(n)
	case n != nil:
		o.Fail(n, "", "%s of %s must be text, not %s", key, o.what, yamlnode.Kind(n))
	}
	return nil
}

// literal is like value for a scalar, but keeps the text of a number or a boolean, for example 0644 or 3.10.
func (l *loader) literal(n *yamlnode.Node) *expr.Value {
	text := *n
	text.Tag = "!!str"
	return l.value(&text)
}

// expression compiles a scalar with one expression or a condition. "${ … }" around it is allowed, because all other
// places require it.
func (l *loader) expression(n *yamlnode.Node, what string, condition bool) *expr.Program {
	if n.Kind != yamlnode.Scalar || yamlnode.IsNull(n) {
		l.Fail(n, "", "%s must be an expression, not %s", what, yamlnode.Kind(n))
		return nil
	}
	src, offset := n.Value, 0
	if trimmed := strings.TrimSpace(src); strings.HasPrefix(trimmed, "${") {
		if end, ok := expr.Close(trimmed, 2); ok && end == len(trimmed)-1 {
			offset = strings.Index(src, "${") + 2
			src = trimmed[2:end]
		}
	}
	env := l.env.At(n, offset)
	compile := env.Compile
	if condition {
		compile = env.Condition
	}
	p, err := compile(src)
	if err != nil {
		l.failExpr(n, err)
		return nil
	}
	l.note(p)
	return p
}

// assignments compiles a mapping of names to values.
func (l *loader) assignments(n *yamlnode.Node, what string) []assignment {
	if n.Kind != yamlnode.Mapping {
		l.Fail(n, "", "%s must be a mapping of names to values, not %s", what, yamlnode.Kind(n))
		return nil
	}
	var out []assignment
	for key, value := range yamlnode.Pairs(n) {
		if !expr.IsIdent(key.Value) {
			l.Fail(key, "use letters, digits, and '_'", "%q in %s is not a valid name", clip(key.Value), what)
			continue
		}
		l.varsAt[key.Value] = true
		out = append(out, assignment{name: key.Value, value: l.value(value)})
	}
	return out
}

// shellCommand compiles the line for /bin/sh. A "${NAME}" in the form of a shell parameter is left to the shell. Every
// other "${ … }" is an expression. shellCommand replaces it by a reference to an environment variable with the value,
// to prevent the shell from interpreting data as code.
func (o *object) shellCommand() (text string, vars []assignment) {
	n := o.at["command"]
	segments, err := o.env.At(n, 0).Scan(o.text("command"), func(rest string) bool { return shellsOwn(o.env, rest) })
	if err != nil {
		o.failExpr(n, err)
		return "", nil
	}
	var out strings.Builder
	for _, seg := range segments {
		if seg.At < 0 {
			out.WriteString(seg.Text)
			continue
		}
		p, err := o.env.At(n, seg.At).Compile(seg.Text)
		if err != nil {
			o.failExpr(n, err)
			continue
		}
		o.note(p)
		name := fmt.Sprint("WORKCELL_VALUE_", len(vars)+1)
		vars = append(vars, assignment{name, expr.Of(p)})
		out.WriteString("${" + name + "}")
	}
	return out.String(), vars
}

// shellsOwn reports whether the text after "${" is a shell parameter. A shell parameter is a name other than env's
// variables, directly after the brace and followed by a character the shell allows.
func shellsOwn(env *expr.Env, s string) bool {
	s = strings.TrimLeft(s, "#!")
	end := len(parameter.FindString(s))
	if end == len(s) {
		return false
	}
	if end == 0 {
		return strings.IndexByte("@*?$-}", s[0]) >= 0
	}
	return !env.Has(s[:end]) && strings.IndexByte("}:-=?+%#/^,@[", s[end]) >= 0
}

// parameter matches the name of a shell parameter, which may be a number.
var parameter = regexp.MustCompile(`^[A-Za-z0-9_]*`)
