package declare

import (
	"maps"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// Bounds of what is read of a schema.
const (
	maxDepth    = 6    // of what is declared; below it is any
	maxNodes    = 2000 // schemas
	maxFields   = 200  // of an object
	maxLiterals = 50   // of an enumeration
	maxLiteral  = 200  // bytes of one
	maxUnion    = 20   // alternatives
	maxName     = 200  // bytes of a property's name
)

type kind int

// What a schema says. The zero kind is any.
const (
	anyKind kind = iota
	stringKind
	integerKind
	numberKind
	booleanKind
	nullKind
	literalKind
	arrayKind  // of elem
	objectKind // with fields
	dictKind   // with values elem
	unionKind
	namedKind // a type of the document
)

// typ is a type that a declaration can write.
type typ struct {
	kind    kind
	literal any // string, bool or number
	elem    *typ
	fields  []field
	union   []*typ
	name    string // of a namedKind: the schema's
}

type field struct {
	name     string
	required bool
	typ      *typ
}

// parser reads the schemas of one document.
type parser struct {
	root  map[string]any
	nodes int             // how many schemas it still reads
	open  map[string]bool // references that are being read
	named map[string]*typ // those that were
	order []string        // of named, what a type uses before it
}

// newParser returns the parser of one document.
func newParser(root map[string]any) *parser {
	return &parser{root: root, nodes: maxNodes, open: map[string]bool{}, named: map[string]*typ{}}
}

// arguments returns the fields of the document itself; none when it is not known which there are.
func (p *parser) arguments() []field { return p.resolve(p.parse(p.root, 1)).fields }

func (p *parser) parse(schema any, depth int) *typ {
	s, ok := schema.(map[string]any)
	if p.nodes--; !ok || depth > maxDepth || p.nodes < 0 {
		return &typ{}
	}
	if ref, ok := s["$ref"].(string); ok {
		return p.ref(ref)
	}
	if c, ok := s["const"]; ok {
		return literalOf(c)
	}
	if list, ok := s["enum"].([]any); ok {
		return enumOf(list)
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		if list, ok := s[key].([]any); ok {
			return p.union(list, depth)
		}
	}
	if list, ok := s["allOf"].([]any); ok {
		return p.merge(s, list, depth)
	}
	return p.byType(s, depth)
}

// ref reads a definition of the document once, and as any within itself.
func (p *parser) ref(ref string) *typ {
	name, ok := strings.CutPrefix(ref, "#/$defs/")
	section := "$defs"
	if !ok {
		name, ok = strings.CutPrefix(ref, "#/definitions/")
		section = "definitions"
	}
	defs, _ := p.root[section].(map[string]any)
	schema, known := defs[name]
	if !ok || !known || p.open[ref] || len(name) > maxName {
		return &typ{}
	}
	if _, done := p.named[ref]; !done {
		p.open[ref] = true
		t := p.parse(schema, 1)
		delete(p.open, ref)
		p.named[ref] = t
		p.order = append(p.order, ref)
	}
	switch t := p.named[ref]; t.kind {
	case objectKind, unionKind, arrayKind, dictKind:
		return &typ{kind: namedKind, name: ref}
	default: // shorter than a name
		return t
	}
}

func (p *parser) union(list []any, depth int) *typ {
	if len(list) > maxUnion {
		return &typ{}
	}
	var of []*typ
	for _, s := range list {
		of = append(of, p.parse(s, depth))
	}
	return unionOf(of)
}

// unionOf returns a type of several, flat. Any among them is any.
func unionOf(of []*typ) *typ {
	var flat []*typ
	for _, t := range of {
		switch t.kind {
		case anyKind:
			return t
		case unionKind:
			flat = append(flat, t.union...)
		default:
			flat = append(flat, t)
		}
	}
	if len(flat) == 0 {
		return &typ{}
	}
	if len(flat) == 1 {
		return flat[0]
	}
	return &typ{kind: unionKind, union: flat}
}

// merge reads a schema and others that hold, too, when all are objects.
func (p *parser) merge(s map[string]any, list []any, depth int) *typ {
	if len(list) > maxUnion {
		return &typ{}
	}
	own := maps.Clone(s)
	delete(own, "allOf")
	all := []*typ{}
	if p.hasShape(own) {
		all = append(all, p.parse(own, depth))
	}
	for _, part := range list {
		all = append(all, p.resolve(p.parse(part, depth)))
	}
	if len(all) == 1 {
		return all[0]
	}
	merged := &typ{kind: objectKind}
	for _, t := range all {
		if t.kind != objectKind || len(merged.fields)+len(t.fields) > maxFields {
			return &typ{}
		}
		for _, f := range t.fields {
			i := slices.IndexFunc(merged.fields, func(have field) bool { return have.name == f.name })
			if i < 0 {
				merged.fields = append(merged.fields, f)
				continue
			}
			have := &merged.fields[i]
			have.required = have.required || f.required
			if have.typ.kind == anyKind {
				have.typ = f.typ
			}
		}
	}
	sortFields(merged.fields, nil)
	return merged
}

func (p *parser) hasShape(s map[string]any) bool {
	for _, key := range []string{"properties", "$ref", "anyOf", "oneOf", "enum", "const", "items"} {
		if _, ok := s[key]; ok {
			return true
		}
	}
	return false
}

func (p *parser) resolve(t *typ) *typ {
	if t.kind == namedKind {
		return p.named[t.name]
	}
	return t
}

func (p *parser) byType(s map[string]any, depth int) *typ {
	switch t := s["type"].(type) {
	case string:
		return p.ofType(t, s, depth)
	case []any:
		if len(t) > maxUnion {
			return &typ{}
		}
		var of []*typ
		for _, one := range t {
			name, _ := one.(string)
			of = append(of, p.ofType(name, s, depth))
		}
		return unionOf(of)
	case nil:
		if _, ok := s["properties"]; ok {
			return p.object(s, depth)
		}
		if _, ok := s["items"]; ok {
			return p.ofType("array", s, depth)
		}
	}
	return &typ{}
}

func (p *parser) ofType(name string, s map[string]any, depth int) *typ {
	switch name {
	case "string":
		return &typ{kind: stringKind}
	case "integer":
		return &typ{kind: integerKind}
	case "number":
		return &typ{kind: numberKind}
	case "boolean":
		return &typ{kind: booleanKind}
	case "null":
		return &typ{kind: nullKind}
	case "array":
		return &typ{kind: arrayKind, elem: p.parse(s["items"], depth+1)}
	case "object":
		return p.object(s, depth)
	}
	return &typ{}
}

func (p *parser) object(s map[string]any, depth int) *typ {
	properties, _ := s["properties"].(map[string]any)
	if len(properties) == 0 {
		return &typ{kind: dictKind, elem: p.parse(s["additionalProperties"], depth+1)}
	}
	if len(properties) > maxFields {
		return &typ{kind: dictKind, elem: &typ{}}
	}
	required := map[string]int{} // place in the schema's list, from 1
	list, _ := s["required"].([]any)
	for i, r := range list {
		if name, ok := r.(string); ok && required[name] == 0 {
			required[name] = i + 1
		}
	}
	t := &typ{kind: objectKind}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if len(name) > maxName || sanitize.Strip(name) != name {
			return &typ{kind: dictKind, elem: &typ{}}
		}
		t.fields = append(t.fields, field{name, required[name] > 0, p.parse(properties[name], depth+1)})
	}
	sortFields(t.fields, required)
	return t
}

// sortFields puts the required ones first, in the order of the schema's list.
func sortFields(fields []field, place map[string]int) {
	slices.SortStableFunc(fields, func(a, b field) int {
		switch {
		case a.required != b.required && a.required:
			return -1
		case a.required != b.required:
			return 1
		}
		return place[a.name] - place[b.name]
	})
}

func enumOf(list []any) *typ {
	if len(list) > maxLiterals {
		if !slices.ContainsFunc(list, func(v any) bool { _, text := v.(string); return !text }) {
			return &typ{kind: stringKind}
		}
		return &typ{}
	}
	var of []*typ
	for _, v := range list {
		of = append(of, literalOf(v))
	}
	return unionOf(of)
}

// literalOf returns the type of one value, its kind where it cannot be written down.
func literalOf(v any) *typ {
	switch v := v.(type) {
	case nil:
		return &typ{kind: nullKind}
	case bool:
		return &typ{kind: literalKind, literal: v}
	case string:
		if len(v) > maxLiteral || sanitize.Strip(v) != v || strings.Contains(v, "\n") {
			return &typ{kind: stringKind}
		}
		return &typ{kind: literalKind, literal: v}
	}
	switch text := encode(v); {
	case text == "" || strings.ContainsAny(text[:1], `{["`):
		return &typ{}
	case len(text) > 16 || strings.ContainsAny(text, ".eE"):
		return &typ{kind: numberKind}
	default:
		return &typ{kind: literalKind, literal: number(text)}
	}
}

// number is a whole number as JSON has it.
type number string
