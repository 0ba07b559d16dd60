package hosttools

import (
	"fmt"
	"slices"
)

// maxSpellingWork is how many subschemas are looked at for the arguments of one call.
const maxSpellingWork = 2_000_000

// spelling finds names in arguments, at any depth, that a handler in Go would take for others, which conditions would not see.
type spelling struct {
	root   map[string]any // the schema of the tool
	work   int
	faults []string
}

func (e *entry) misspelt(args map[string]any) []string {
	s := &spelling{root: e.tool.Input}
	s.value(args, []any{e.tool.Input})
	slices.Sort(s.faults)
	if s.work > maxSpellingWork {
		s.faults = []string{"they have too many values for a schema of this size"}
	}
	return slices.Compact(s.faults)
}

// value looks at a value that schemas may be about.
func (s *spelling) value(v any, schemas []any) {
	if s.work > maxSpellingWork || len(s.faults) >= maxFaults {
		return
	}
	switch v := v.(type) {
	case map[string]any:
		if about := s.all(nil, schemas); len(about) > 0 {
			s.object(v, about)
		}
	case []any:
		if about := s.all(nil, schemas); len(about) > 0 {
			s.list(v, about)
		}
	}
}

// all appends the schemas to list, and those that they combine: every one of them may be the one that counts.
func (s *spelling) all(list []map[string]any, schemas []any) []map[string]any {
	for _, one := range schemas {
		schema, ok := one.(map[string]any)
		if s.work++; !ok || len(schema) == 0 || s.work > maxSpellingWork {
			continue
		}
		list = append(list, schema)
		if ref, ok := schema["$ref"].(string); ok {
			walk := refWalk{root: s.root}
			if target, ok := walk.target(ref); ok {
				list = s.all(list, []any{target})
			}
		}
		for _, key := range []string{"allOf", "anyOf", "oneOf"} {
			some, _ := schema[key].([]any)
			list = s.all(list, some)
		}
		list = s.all(list, []any{schema["if"], schema["then"], schema["else"]})
		for _, key := range []string{"dependentSchemas", "dependencies"} {
			some, _ := schema[key].(map[string]any)
			for _, one := range some {
				list = s.all(list, []any{one})
			}
		}
	}
	return list
}

func (s *spelling) object(v map[string]any, about []map[string]any) {
	known, meant := map[string][]any{}, map[string]string{} // schemas by name, names by what encoding/json takes for them
	var others []any
	for _, schema := range about {
		properties, _ := schema["properties"].(map[string]any)
		for name, property := range properties {
			s.work++
			known[name] = append(known[name], property)
			if folded := fold(name); meant[folded] == "" || name < meant[folded] {
				meant[folded] = name
			}
		}
		others = append(others, schema["additionalProperties"], schema["unevaluatedProperties"])
		patterns, _ := schema["patternProperties"].(map[string]any)
		for _, property := range patterns {
			others = append(others, property)
		}
	}
	for given, value := range v {
		s.work++
		schemas, ok := known[given]
		if name := meant[fold(given)]; !ok && name != "" && len(s.faults) < maxFaults {
			s.faults = append(s.faults, fmt.Sprintf("write %s, not %s", plain(name, 80), plain(given, 80)))
		}
		s.value(value, slices.Concat(schemas, others))
	}
}

func (s *spelling) list(v []any, about []map[string]any) {
	var each []any
	var at [][]any // schemas of items by their place
	for _, schema := range about {
		first, _ := schema["prefixItems"].([]any)
		if items, ok := schema["items"].([]any); ok { // as drafts before 2020-12 have them
			first = items
		}
		at = append(at, first)
		each = append(each, schema["items"], schema["additionalItems"], schema["unevaluatedItems"], schema["contains"])
	}
	for i, value := range v {
		s.work++
		schemas := each
		for _, first := range at {
			if i < len(first) {
				schemas = append(slices.Clip(schemas), first[i])
			}
		}
		s.value(value, schemas)
	}
}
