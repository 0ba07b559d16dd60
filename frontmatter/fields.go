package frontmatter

import (
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// InputFields returns the names of the fields of the input schema, sorted: of dotprompt's short form and of JSON Schema. It
// is empty when the file has no such schema.
func (d *Document) InputFields() []string {
	if d.root == nil {
		return nil
	}
	schema := d.root
	for _, key := range []string{"input", "schema"} {
		if schema = lookup(schema, key); schema == nil {
			return nil
		}
	}
	if p := lookup(schema, "properties"); p != nil && p.Kind == yamlnode.Mapping {
		schema = p
	}
	var names []string
	for key := range yamlnode.Pairs(schema) {
		name, _, _ := strings.Cut(key.Value, "(") // "figures(array, the numbers)"
		if name = strings.TrimSuffix(strings.TrimSpace(name), "?"); name != "" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
