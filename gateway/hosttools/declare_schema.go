package hosttools

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// Limits for reading a schema.
const (
	maxTypeDepth = 10        // nesting depth; deeper types become Any
	maxFields    = 200       // per object
	maxLiterals  = 50        // per enumeration
	maxLiteral   = 200       // bytes per literal
	maxUnion     = 20        // alternatives per union
	maxName      = 200       // bytes of a property name
	schemaCost   = 64        // bytes charged for reading a schema
	maxRead      = 256 << 10 // bytes of all schemas read through references or from the document
)

// field is a property of an object.
type field struct {
	name     string
	required bool
	schema   any
}

// reader writes the schemas of one document as Python types. Objects become dict displays, so they need no names. The
// document has no cyclic references, see cleanSchema.
type reader struct {
	root map[string]any
	left int // remaining part of maxRead
}

func newReader(root map[string]any) *reader { return &reader{root: root, left: maxRead} }

// follow follows the references of a schema. A nil schema accepts any value.
func (r *reader) follow(schema any, depth int) map[string]any {
	s, _ := schema.(map[string]any)
	for ; s != nil && depth <= maxTypeDepth && r.left > 0; depth++ {
		r.left -= schemaCost
		ref, ok := s["$ref"].(string)
		if !ok {
			return s
		}
		section, name, _ := strings.Cut(strings.TrimPrefix(ref, "#/"), "/")
		defs, _ := r.root[section].(map[string]any)
		s, _ = defs[name].(map[string]any)
	}
	return nil
}

// fields returns the properties of an object, required properties first. It returns nil if the properties are unknown.
func (r *reader) fields(schema any, depth int) []field {
	s := r.follow(schema, depth)
	properties, _ := s["properties"].(map[string]any)
	required, _ := s["required"].([]any)
	parts, _ := s["allOf"].([]any)
	if len(properties) > maxFields || len(parts) > maxUnion {
		return nil
	}
	place := map[string]int{}
	for i, name := range slices.Backward(required) {
		if name, ok := name.(string); ok {
			place[name] = i - len(required)
		}
	}
	var list []field
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if r.left -= len(name); len(name) > maxName || sanitize.Strip(name) != name {
			return nil
		}
		list = append(list, field{name, place[name] < 0, properties[name]})
	}
	for _, part := range parts {
		more := r.fields(part, depth+1)
		if len(more) == 0 || len(list)+len(more) > maxFields {
			return nil
		}
		for _, f := range more {
			if i := slices.IndexFunc(list, func(have field) bool { return have.name == f.name }); i >= 0 {
				list[i].required = list[i].required || f.required
			} else {
				list = append(list, f)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b field) int {
		if a.required != b.required {
			return map[bool]int{true: -1, false: 1}[a.required]
		}
		return cmp.Compare(place[a.name], place[b.name])
	})
	return list
}

// typ returns the Python type for a schema.
func (r *reader) typ(schema any, depth int) string {
	s := r.follow(schema, depth)
	if c, ok := s["const"]; ok {
		return r.literals([]any{c})
	}
	if list, ok := s["enum"].([]any); ok {
		return r.literals(list)
	}
	for _, key := range []string{"anyOf", "oneOf"} {
		if list, ok := s[key].([]any); ok {
			return union(list, func(one any) string { return r.typ(one, depth+1) })
		}
	}
	if fields := r.fields(s, depth); len(fields) > 0 {
		properties := make([]string, len(fields))
		for i, f := range fields {
			if !f.required {
				f.name += "?"
			}
			properties[i] = encodeJSON(f.name) + ": " + r.typ(f.schema, depth+1)
		}
		return "{" + strings.Join(properties, ", ") + "}"
	}
	kinds, many := s["type"].([]any)
	if !many {
		kinds = []any{s["type"]}
	}
	return union(kinds, func(kind any) string {
		switch kind {
		case "array":
			return "list[" + r.typ(s["items"], depth+1) + "]"
		case "object":
			return "dict[str, " + r.typ(s["additionalProperties"], depth+1) + "]"
		}
		name, _ := kind.(string)
		return cmp.Or(pythonTypes[name], "Any")
	})
}

var pythonTypes = map[string]string{
	"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None",
}

// pythonWords are the words of JSON in Python.
var pythonWords = map[string]string{"true": "True", "false": "False", "null": "None"}

// union returns the union of alternatives. If one of them is Any, the union is Any.
func union(list []any, typ func(any) string) string {
	if len(list) == 0 || len(list) > maxUnion {
		return "Any"
	}
	var all []string
	for _, one := range list {
		t := typ(one)
		if t == "Any" {
			return t
		}
		if !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	return strings.Join(all, " | ")
}

// literals returns the type for the values of an enumeration.
func (r *reader) literals(list []any) string {
	if len(list) == 0 || len(list) > maxLiterals {
		return "Any"
	}
	values := make([]string, len(list))
	for i, v := range list {
		text, isText := v.(string)
		values[i] = encodeJSON(v)
		r.left -= len(values[i])
		switch {
		case isText && len(text) > maxLiteral, sanitize.Strip(text) != text, strings.Contains(text, "\n"):
			return "str"
		case len(values[i]) > 2*maxLiteral || strings.HasPrefix(values[i], "{") || strings.HasPrefix(values[i], "["):
			return "Any"
		}
		values[i] = cmp.Or(pythonWords[values[i]], values[i])
	}
	return "Literal[" + strings.Join(values, ", ") + "]"
}
