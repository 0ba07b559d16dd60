package workflow

import (
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/expr"
)

// value compiles a tree of data with expressions in its strings.
func (l *loader) value(env *expr.Env, n *yaml.Node) *value {
	v := &value{src: l.source, root: n, nodes: map[string]*yaml.Node{}}
	v.Value = l.tree(env, n, "", v)
	return v
}

func (l *loader) tree(env *expr.Env, n *yaml.Node, path string, v *value) *expr.Value {
	n = follow(n)
	l.nodes++
	if l.nodes > maxYAMLNodes {
		return expr.Const(nil) // reported by wellFormed
	}
	v.nodes[path] = n
	switch n.Kind {
	case yaml.MappingNode:
		items := make(map[string]*expr.Value, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i].Value
			sub := key
			if path != "" {
				sub = path + "." + key
			}
			items[key] = l.tree(env, n.Content[i+1], sub, v)
		}
		return expr.Map(items)
	case yaml.SequenceNode:
		items := make([]*expr.Value, len(n.Content))
		for i, c := range n.Content {
			items[i] = l.tree(env, c, path+"["+strconv.Itoa(i)+"]", v)
		}
		return expr.List(items)
	}
	return l.leaf(env, n, v)
}

func (l *loader) leaf(env *expr.Env, n *yaml.Node, v *value) *expr.Value {
	s, ok := l.scalar(n).(string)
	if !ok {
		return expr.Const(l.scalar(n))
	}
	leaf, err := env.Template(s)
	if err != nil {
		l.failExpr(n, 0, err)
		return expr.Const(s)
	}
	for _, p := range leaf.Programs() {
		v.progs = append(v.progs, compiled{Program: p.Program, offset: p.Offset, node: n, src: l.source})
	}
	return leaf
}

// textValue is value for a scalar that ends up as text: a path, a line of input.
func (l *loader) textValue(env *expr.Env, o *object, key string) *value {
	n := o.at[key]
	if n == nil {
		return nil
	}
	if n.Kind != yaml.ScalarNode {
		l.fail(n, "", "%s of %s must be text, it is %s", key, o.what, kindOf(n))
		return nil
	}
	return l.value(env, n)
}

// expression compiles a scalar that is one expression. "${ … }" around it is allowed, because everywhere else it is
// needed.
func (l *loader) expression(env *expr.Env, n *yaml.Node, what string, bool bool) *condition {
	if n.Kind != yaml.ScalarNode || isNull(n) {
		l.fail(n, "", "%s must be an expression, it is %s", what, kindOf(n))
		return nil
	}
	src, offset := n.Value, 0
	if trimmed := strings.TrimSpace(src); strings.HasPrefix(trimmed, "${") {
		if end, ok := expr.Close(trimmed, 2); ok && end == len(trimmed)-1 {
			offset = strings.Index(src, "${") + 2
			src = trimmed[2:end]
		}
	}
	compile := env.Compile
	if bool {
		compile = env.Condition
	}
	p, err := compile(src)
	if err != nil {
		l.failExpr(n, offset, err)
		return nil
	}
	return &condition{compiled{Program: p, offset: offset, node: n, src: l.source}}
}

// assignments compiles a mapping of names to values.
func (l *loader) assignments(env *expr.Env, n *yaml.Node, what string) []assignment {
	if n.Kind != yaml.MappingNode {
		l.fail(n, "", "%s must be a mapping of names to values, it is %s", what, kindOf(n))
		return nil
	}
	var out []assignment
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if !expr.IsIdent(key.Value) {
			l.fail(key, "letters, digits and '_'", "%q in %s is not a valid name", clip(key.Value), what)
			continue
		}
		l.varsAt[key.Value] = key.Value
		out = append(out, assignment{name: key.Value, value: l.value(env, n.Content[i+1])})
	}
	return out
}

// shellCommand compiles the line for /bin/sh. What looks like the shell's own "${NAME}" stays the shell's; every other
// "${ … }" is an expression, and becomes a reference to an environment variable that will hold its value.
func (l *loader) shellCommand(env *expr.Env, o *object) *command {
	n := o.at["command"]
	s := o.text("command")
	if s == "" {
		return nil
	}
	c := &command{}
	var out strings.Builder
	for i := 0; i < len(s); {
		switch {
		case strings.HasPrefix(s[i:], "$${"):
			out.WriteString("${")
			i += 3
		case strings.HasPrefix(s[i:], "${") && !shellsOwn(env, s[i+2:]):
			end, ok := expr.Close(s, i+2)
			if !ok {
				line, column := l.place(n, i)
				l.failAt(line, column, `write "$${" for a plain "${"`, `"${" has no matching "}"`)
				return nil
			}
			if a, ok := l.shellValue(env, n, s[i+2:end], i+2, len(c.vars)+1); ok {
				c.vars = append(c.vars, a)
				out.WriteString("${" + a.name + "}")
			}
			i = end + 1
		default:
			out.WriteByte(s[i])
			i++
		}
	}
	c.text = out.String()
	return c
}

func (l *loader) shellValue(env *expr.Env, n *yaml.Node, src string, offset, number int) (assignment, bool) {
	v := &value{src: l.source, root: n, shift: offset - 2}
	tmpl, err := env.Template("${" + src + "}")
	if err != nil {
		l.failExpr(n, offset-2, err)
		return assignment{}, false
	}
	v.Value = tmpl
	for _, p := range tmpl.Programs() {
		v.progs = append(v.progs, compiled{Program: p.Program, offset: offset, node: n, src: l.source})
	}
	return assignment{name: valueVar + strconv.Itoa(number), value: v}, true
}

// valueVar begins the names of the variables that carry values into a command.
const valueVar = "WORKCELL_VALUE_"

// shellsOwn reports whether what follows "${" is a parameter of the shell: a name that is none of ours, directly after
// the brace and followed by what a shell allows there.
func shellsOwn(env *expr.Env, s string) bool {
	s = strings.TrimLeft(s, "#!")
	end := 0
	for end < len(s) && (s[end] == '_' || s[end] >= 'a' && s[end] <= 'z' || s[end] >= 'A' && s[end] <= 'Z' || s[end] >= '0' && s[end] <= '9') {
		end++
	}
	if end == len(s) {
		return false
	}
	if end == 0 {
		return strings.IndexByte("@*?$-}", s[0]) >= 0
	}
	return !env.Has(s[:end]) && strings.IndexByte("}:-=?+%#/^,@[", s[end]) >= 0
}
