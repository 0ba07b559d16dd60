package yamlnode

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// maxSchemaWork bounds how many subschemas may apply to one value.
const maxSchemaWork = 10_000

// CheckReferences checks the references of a JSON Schema: each must lead to the schema itself or to one of its
// definitions, and validating by it must end. Validators follow every other one, to files and addresses, too.
func CheckReferences(schema map[string]any) error {
	return (&refCheck{root: schema, work: map[string]int{}}).all(schema)
}

// refCheck finds references that would make validation endless: validating follows "$ref" as it goes, without looking
// whether it was there before.
type refCheck struct {
	root map[string]any
	work map[string]int // of each reference; 0 while it is looked at
}

// all checks every subschema of the schema.
func (c *refCheck) all(at any) error {
	switch at := at.(type) {
	case map[string]any:
		if _, err := c.cost(at); err != nil {
			return err
		}
		for _, key := range slices.Sorted(maps.Keys(at)) { // so that a file always has the same message
			if err := c.all(at[key]); err != nil {
				return err
			}
		}
	case []any:
		for _, v := range at {
			if err := c.all(v); err != nil {
				return err
			}
		}
	}
	return nil
}

// cost counts the subschemas that apply to the same value as at.
func (c *refCheck) cost(at any) (int, error) {
	m, ok := at.(map[string]any)
	if !ok {
		return 1, nil
	}
	total := 1
	if ref, ok := m["$ref"].(string); ok {
		n, err := c.follow(ref)
		if err != nil {
			return 0, err
		}
		total += n
	}
	for _, key := range []string{"$dynamicRef", "$anchor", "$dynamicAnchor", "$id"} {
		if _, ok := m[key].(string); ok {
			return 0, fmt.Errorf("%s is not supported", key)
		}
	}
	for _, sub := range inPlace(m) {
		n, err := c.cost(sub)
		if err != nil {
			return 0, err
		}
		total += n
	}
	if total > maxSchemaWork {
		return 0, errors.New("the references expand without limit")
	}
	return total, nil
}

func (c *refCheck) follow(ref string) (int, error) {
	if n, ok := c.work[ref]; ok {
		if n == 0 {
			return 0, fmt.Errorf("$ref %s refers to itself", ref)
		}
		return n, nil
	}
	target, err := c.resolve(ref)
	if err != nil {
		return 0, err
	}
	c.work[ref] = 0
	n, err := c.cost(target)
	c.work[ref] = n
	return n, err
}

// resolve follows "#" and "#/$defs/name".
func (c *refCheck) resolve(ref string) (any, error) {
	if ref == "#" {
		return c.root, nil
	}
	for _, key := range []string{"$defs", "definitions"} {
		// A name with "/", "~" or "%" is another path to a validator.
		if name, ok := strings.CutPrefix(ref, "#/"+key+"/"); ok && !strings.ContainsAny(name, "/~%") {
			defs, _ := c.root[key].(map[string]any)
			if target, ok := defs[name]; ok {
				return target, nil
			}
			return nil, fmt.Errorf("$ref %s: definition not found", ref)
		}
	}
	return nil, fmt.Errorf("$ref %s: only # and #/$defs/name are supported", ref)
}

// inPlace lists the subschemas that apply to the same value as m itself.
func inPlace(m map[string]any) []any {
	var out []any
	for _, key := range []string{"allOf", "anyOf", "oneOf"} {
		if list, ok := m[key].([]any); ok {
			out = append(out, list...)
		}
	}
	for _, key := range []string{"not", "if", "then", "else"} {
		if sub, ok := m[key]; ok {
			out = append(out, sub)
		}
	}
	for _, key := range []string{"dependentSchemas", "dependencies"} {
		if subs, ok := m[key].(map[string]any); ok {
			for _, name := range slices.Sorted(maps.Keys(subs)) {
				out = append(out, subs[name])
			}
		}
	}
	return out
}
