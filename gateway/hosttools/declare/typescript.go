package declare

import (
	"fmt"
	"strings"
)

// typeScriptKeywords cannot be names of functions.
func typeScriptKeywords() map[string]bool {
	return set("arguments await break case catch class const continue debugger default delete do else enum eval export extends false finally " +
		"for function if implements import in instanceof interface let new null package private protected public return static " +
		"super switch this throw true try typeof var void while with yield")
}

// TypeScript returns a declaration of the tool as code inside calls it.
func TypeScript(t Tool) string {
	d := &typeScript{names: newNames("Promise Record Options")}
	name := identifier(t.Name, typeScriptKeywords())
	results := "any"
	if t.Output != nil {
		results = d.document(newParser(t.Output))
	}
	in := newParser(t.Input)
	root := in.parse(in.root, 1)
	d.declare(in)
	optional := "?"
	for _, f := range in.resolve(root).fields {
		if f.required {
			optional = ""
		}
	}
	args := d.typ(root)
	text := d.types.String() + comment(t.Description, t.Title) +
		"export declare function " + name + "(args" + optional + ": " + args + ", options?: Options): Promise<" + results + ">;\n"
	if len(text) > maxText {
		text = comment(oneLine(t.Description, maxIndexWords)) + "export declare function " + name + "(args?: any, options?: Options): Promise<any>;\n"
	}
	return "// " + typeScriptCall(t) + "\nimport type {CallOptions as Options} from \"workcell\";\n\n" + text
}

// typeScriptCall returns how code calls the tool: properties may be keywords.
func typeScriptCall(t Tool) string {
	if isIdentifier(t.Server) && isIdentifier(t.Name) && t.Server != "call" {
		return "await tools." + t.Server + "." + t.Name + "({...})"
	}
	return "await tools.call(" + encode(oneLine(t.fullName(), 200)) + ", {...})"
}

func comment(texts ...string) string {
	for _, s := range texts {
		if s = strings.TrimSpace(clean(s)); s != "" {
			return "/** " + strings.ReplaceAll(strings.ReplaceAll(s, "*/", `*\/`), "\n", "\n * ") + " */\n"
		}
	}
	return ""
}

type typeScript struct {
	names *names
	types strings.Builder
	named map[string]string // names of the document's own types
}

// document declares the types of a document and returns its own.
func (d *typeScript) document(in *parser) string {
	root := in.parse(in.root, 1)
	d.declare(in)
	return d.typ(root)
}

func (d *typeScript) declare(in *parser) {
	d.named = map[string]string{}
	for _, ref := range in.order {
		d.named[ref] = d.names.take(ref[strings.LastIndex(ref, "/")+1:])
	}
	for _, ref := range in.order {
		switch t := in.named[ref]; t.kind {
		case objectKind, unionKind, arrayKind, dictKind:
			fmt.Fprintf(&d.types, "export type %s = %s;\n\n", d.named[ref], d.typ(t))
		}
	}
}

func (d *typeScript) typ(t *typ) string {
	if !d.names.more() {
		return "any"
	}
	switch t.kind {
	case stringKind:
		return "string"
	case integerKind, numberKind:
		return "number"
	case booleanKind:
		return "boolean"
	case nullKind:
		return "null"
	case literalKind:
		return literal(t.literal)
	case arrayKind:
		elem := d.typ(t.elem)
		if t.elem.kind == unionKind {
			elem = "(" + elem + ")"
		}
		return elem + "[]"
	case dictKind:
		return "Record<string, " + d.typ(t.elem) + ">"
	case objectKind:
		return d.object(t.fields)
	case unionKind:
		var of []string
		for _, u := range t.union {
			of = append(of, d.typ(u))
		}
		return strings.Join(unique(of), " | ")
	case namedKind:
		return d.named[t.name]
	}
	return "any"
}

func (d *typeScript) object(fields []field) string {
	var of []string
	for _, f := range fields {
		name := f.name
		if !isIdentifier(name) {
			name = encode(name)
		}
		if !f.required {
			name += "?"
		}
		of = append(of, name+": "+d.typ(f.typ))
	}
	return "{" + strings.Join(of, "; ") + "}"
}
