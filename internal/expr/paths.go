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
func (p *Program) chain(e ast.NavigableExpr) (path Path, ok bool) {
	if e.Kind() == ast.IdentKind {
		name := e.AsIdent()
		return Path{Root: name, At: p.after(p.nodeOffset(e.ID()))}, !isLocal(e, name)
	}
	key, at, ok := constantKey(e)
	if !ok {
		return path, false
	}
	if path, ok = p.chain(e.Children()[0]); !ok {
		return path, false
	}
	offset := p.nodeOffset(at.ID())
	if offset < len(p.src) && p.src[offset] == '.' { // CEL's position of a selection; the key follows
		offset++
	}
	path.Keys = append(path.Keys, key)
	path.Places = append(path.Places, p.after(offset))
	return path, true
}

// constantKey returns the constant key that e selects, and the node with its position.
func constantKey(e ast.NavigableExpr) (key string, at ast.NavigableExpr, ok bool) {
	switch e.Kind() {
	case ast.SelectKind:
		return e.AsSelect().FieldName(), e, true
	case ast.CallKind:
		switch e.AsCall().FunctionName() {
		case operators.Index, operators.OptIndex, operators.OptSelect: // their arguments are the container and the key
			at = e.Children()[1]
			s, ok := at.AsLiteral().(types.String)
			return string(s), at, ok
		}
	}
	return "", nil, false
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
