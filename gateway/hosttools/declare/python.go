package declare

import (
	"fmt"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// pythonKeywords cannot be names. Code inside writes them with an underscore behind.
func pythonKeywords() map[string]bool {
	return set("False None True and as assert async await break class continue def del elif else except finally for from global " +
		"if import in is lambda nonlocal not or pass raise return try while with yield")
}

func set(words string) map[string]bool {
	s := map[string]bool{}
	for _, w := range strings.Fields(words) {
		s[w] = true
	}
	return s
}

// Python returns a stub of the tool as code inside calls it.
func Python(t Tool) string {
	p := &pythonStub{names: newNames("Any Literal NotRequired TypedDict str int float bool list dict None True False")}
	p.keywords = pythonKeywords()
	name := identifier(t.Name, p.keywords)
	p.names.taken[name] = true
	results := "Any"
	if t.Output != nil {
		out := newParser(t.Output)
		root := out.parse(out.root, 1)
		p.declare(out)
		results = p.typ(root, name+"_result")
	}
	in := newParser(t.Input)
	def := p.function(name, in, results)
	text := "from typing import Any, Literal, NotRequired, TypedDict\n\n" + p.classes.String() + def + "    " + docstring(t.Description, t.Title) + "\n"
	if len(text) > maxText {
		text = "from typing import Any\n\ndef " + name + "(**arguments: Any) -> Any:\n    " + docstring(oneLine(t.Description, maxIndexWords), "") + "\n"
	}
	return "# " + pythonCall(t) + "\n" + text
}

// pythonCall returns how code calls the tool.
func pythonCall(t Tool) string {
	keywords := pythonKeywords()
	name := identifier(t.Name, keywords)
	keywords["call"] = true // an attribute of tools that is no server
	if server := identifier(t.Server, keywords); server[0] != '_' && name[0] != '_' {
		return "from workcell import tools; tools." + server + "." + name + "(...)"
	}
	return "from workcell import tools; tools.call(" + encode(oneLine(t.fullName(), 200)) + ", {...})"
}

func docstring(texts ...string) string {
	for _, s := range texts {
		if s = strings.TrimSpace(sanitize.Strip(s)); s != "" {
			s = strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), `"""`, `'''`)
			if strings.HasSuffix(s, `"`) {
				s += " "
			}
			return `"""` + strings.ReplaceAll(strings.ReplaceAll(s, "\n", "\n    "), "\n    \n", "\n\n") + `"""`
		}
	}
	return "..."
}

type pythonStub struct {
	keywords map[string]bool
	names    *names
	classes  strings.Builder
	types    map[string]string // names of the document's own types
}

// declare declares the types of a document.
func (p *pythonStub) declare(in *parser) {
	p.types = map[string]string{}
	for _, ref := range in.order {
		p.types[ref] = p.names.take(ref[strings.LastIndex(ref, "/")+1:])
	}
	for _, ref := range in.order {
		switch t, name := in.named[ref], p.types[ref]; t.kind {
		case objectKind:
			p.class(name, t.fields)
		case unionKind, arrayKind, dictKind:
			fmt.Fprintf(&p.classes, "%s = %s\n\n", name, p.typ(t, name))
		}
	}
}

// class declares an object.
func (p *pythonStub) class(name string, fields []field) {
	plain := !slices.ContainsFunc(fields, func(f field) bool {
		return !isIdentifier(f.name) || p.keywords[f.name] || strings.HasPrefix(f.name, "__")
	})
	var lines []string
	for _, f := range fields {
		of := p.typ(f.typ, name+"_"+f.name)
		if !f.required {
			of = "NotRequired[" + of + "]"
		}
		if plain {
			lines = append(lines, "    "+f.name+": "+of+"\n")
		} else {
			lines = append(lines, encode(f.name)+": "+of)
		}
	}
	if plain {
		fmt.Fprintf(&p.classes, "class %s(TypedDict):\n%s\n", name, strings.Join(lines, ""))
		return
	}
	fmt.Fprintf(&p.classes, "%s = TypedDict(%q, {%s})\n\n", name, name, strings.Join(lines, ", "))
}

// typ returns how a type is written, and declares it where it needs a name.
func (p *pythonStub) typ(t *typ, hint string) string {
	if !p.names.more() {
		return "Any"
	}
	switch t.kind {
	case stringKind:
		return "str"
	case integerKind:
		return "int"
	case numberKind:
		return "float"
	case booleanKind:
		return "bool"
	case nullKind:
		return "None"
	case literalKind:
		return "Literal[" + pythonLiteral(t.literal) + "]"
	case arrayKind:
		return "list[" + p.typ(t.elem, hint+"_item") + "]"
	case dictKind:
		return "dict[str, " + p.typ(t.elem, hint+"_value") + "]"
	case objectKind:
		name := p.names.take(hint)
		p.class(name, t.fields)
		return name
	case unionKind:
		return p.union(t.union, hint)
	case namedKind:
		return p.types[t.name]
	}
	return "Any"
}

func (p *pythonStub) union(of []*typ, hint string) string {
	var literals, rest []string
	for _, t := range of {
		if t.kind == literalKind {
			literals = append(literals, pythonLiteral(t.literal))
		} else {
			rest = append(rest, p.typ(t, hint))
		}
	}
	if len(literals) > 0 {
		rest = append([]string{"Literal[" + strings.Join(unique(literals), ", ") + "]"}, rest...)
	}
	return strings.Join(unique(rest), " | ")
}

func pythonLiteral(v any) string {
	switch v := v.(type) {
	case bool:
		if v {
			return "True"
		}
		return "False"
	case number:
		return string(v)
	}
	return encode(v)
}

// function returns the head of the function. Arguments that it cannot have are told of before it.
func (p *pythonStub) function(name string, in *parser, results string) string {
	root := in.resolve(in.parse(in.root, 1))
	p.declare(in)
	if root.kind != objectKind {
		return "def " + name + "(**arguments: Any) -> " + results + ":\n"
	}
	var args, others []string
	for _, f := range root.fields {
		of := p.typ(f.typ, name+"_"+f.name)
		id, ok := p.argument(f.name)
		switch {
		case !ok:
			others = append(others, "# By tools.call alone: "+encode(oneLine(f.name, 80))+": "+of+"\n")
		case f.required:
			args = append(args, id+": "+of)
		default:
			args = append(args, id+": "+of+" = ...")
		}
	}
	if len(args) > 0 {
		args = append([]string{"*"}, args...)
	}
	return strings.Join(others, "") + "def " + name + "(" + strings.Join(args, ", ") + ") -> " + results + ":\n"
}

// argument returns the name of an argument in code; false when code cannot name it.
func (p *pythonStub) argument(name string) (string, bool) {
	base, underscored := strings.CutSuffix(name, "_")
	switch {
	case !isIdentifier(name), underscored && p.keywords[base], slices.Contains([]string{"_save", "_timeout", "_files"}, name):
		return "", false
	case p.keywords[name]:
		return name + "_", true
	}
	return name, true
}
