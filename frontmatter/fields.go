package frontmatter

import (
	"slices"
	"strings"

	"gopkg.in/yaml.v3"
)

// InputFields returns the names of the fields of the input schema, sorted: of dotprompt's short form and of JSON Schema. It
// is empty when the file has no such schema.
func (d *Document) InputFields() []string {
	schema := child(child(d.root, "input"), "schema")
	if p := child(schema, "properties"); p != nil && p.Kind == yaml.MappingNode {
		schema = p
	}
	if schema == nil || schema.Kind != yaml.MappingNode {
		return nil
	}
	var names []string
	for i := 0; i+1 < len(schema.Content); i += 2 {
		name, _, _ := strings.Cut(schema.Content[i].Value, "(") // "figures(array, the numbers)"
		name = strings.TrimSuffix(strings.TrimSpace(name), "?")
		if name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// child returns a value of a mapping; nil when there is none.
func child(n *yaml.Node, key string) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}
