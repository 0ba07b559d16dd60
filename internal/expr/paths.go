package expr

import (
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
)

// Path is a chain of constant keys an expression reads from a variable. For example, steps["a-b"].output.ok and
// steps.?["a-b"].?output.?ok both have Root steps and Keys [a-b output ok]. The path ends before a computed key or a
// call.
type Path struct {
	Root string
	At   Place // position of the root
	Keys []string
	// Places contains the position of each key. List indices are not constant keys, so an index ends the path.
	Places []Place
}

// Paths returns the paths the expression reads from the variables, each chain once with the full length.
func (p *Program) Paths() []Path {
	var out []Path
	tree := p.ast.NativeRep()
	var walk func(e ast.NavigableExpr)
	walk = func(e ast.NavigableExpr) {
		if path, ok := p.chain(e); ok {
			out = append(out, path)
			return
		}
		for _, child := range e.Children() {
			walk(child)
		}
	}
	walk(ast.NavigateAST(tree))
	return out
}

// chain returns the path of e if e is a chain of selections starting at a variable.
func (p *Program) chain(e ast.NavigableExpr) (Path, bool) {
	switch e.Kind() {
	case ast.IdentKind:
		name := e.AsIdent()
		if isLocal(e, name) {
			return Path{}, false
		}
		return Path{Root: name, At: p.after(p.nodeOffset(e.ID()))}, true
	case ast.SelectKind:
		path, ok := p.chain(e.Children()[0])
		if !ok {
			return Path{}, false
		}
		return p.extend(path, e, e.AsSelect().FieldName()), true
	case ast.CallKind:
		key, ok := constantKey(e)
		if !ok {
			return Path{}, false
		}
		path, ok := p.chain(e.Children()[0])
		if !ok {
			return Path{}, false
		}
		return p.extend(path, e.Children()[1], key), true
	}
	return Path{}, false
}

// extend adds a key. CEL's position of a selection is the dot, and the key follows one byte later.
func (p *Program) extend(path Path, e ast.NavigableExpr, key string) Path {
	offset := p.nodeOffset(e.ID())
	if offset < len(p.src) && p.src[offset] == '.' {
		offset++
	}
	path.Keys = append(path.Keys, key)
	path.Places = append(path.Places, p.after(offset))
	return path
}

func constantKey(e ast.NavigableExpr) (string, bool) {
	call := e.AsCall()
	switch call.FunctionName() {
	case operators.Index, operators.OptIndex, operators.OptSelect:
	default:
		return "", false
	}
	if len(call.Args()) != 2 {
		return "", false
	}
	arg := call.Args()[1]
	if arg.Kind() != ast.LiteralKind {
		return "", false
	}
	s, ok := arg.AsLiteral().(types.String)
	return string(s), ok
}

// isLocal reports whether a macro around e, for example list.all(name, …), declares name, so name is not a variable of
// the environment.
func isLocal(e ast.NavigableExpr, name string) bool {
	for parent, ok := e.Parent(); ok; parent, ok = parent.Parent() {
		if parent.Kind() != ast.ComprehensionKind {
			continue
		}
		c := parent.AsComprehension()
		if name == c.IterVar() || name == c.IterVar2() || name == c.AccuVar() {
			return true
		}
	}
	return false
}
