package workflow

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// schema is the JSON Schema of a run's input.
type schema struct {
	raw      map[string]any
	resolved *jsonschema.Resolved
}

func (l *loader) schema(n *yaml.Node) *schema {
	if n.Kind != yaml.MappingNode {
		l.fail(n, "as in input: {type: object, properties: {repo: {type: string}}}", "input must be a JSON Schema, it is %s", yamlnode.Kind(n))
		return nil
	}
	raw, _ := expr.Data(n, l.failExpr).(map[string]any)
	if t, ok := raw["type"]; ok && t != "object" {
		l.fail(n, "a run's input is a map of names to values", "input must have type object, it has %s", clip(expr.Text(t)))
		return nil
	}
	if err := (&refCheck{root: raw, work: map[string]int{}}).all(raw); err != nil {
		l.fail(n, "", "input: %v", err)
		return nil
	}
	data, err := json.Marshal(raw)
	if err != nil {
		l.fail(n, "", "input: %v", err)
		return nil
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(data, &s); err != nil {
		l.fail(n, "", "input is not a valid JSON Schema: %v", err)
		return nil
	}
	resolved, err := s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	if err != nil {
		l.fail(n, "", "input is not a valid JSON Schema: %v", err)
		return nil
	}
	return &schema{raw: raw, resolved: resolved}
}

// check fills the schema's defaults into a copy of input and validates it.
func (s *schema) check(input map[string]any) (map[string]any, error) {
	plain, err := expr.Normalize(input, maxInputBytes)
	if err != nil {
		return nil, err
	}
	out, _ := plain.(map[string]any)
	if out == nil {
		out = map[string]any{}
	}
	if s == nil {
		return out, nil
	}
	if err := s.resolved.ApplyDefaults(&out); err != nil {
		return nil, err
	}
	if err := s.resolved.Validate(out); err != nil {
		return nil, fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "validating root: "))
	}
	plain, err = expr.Normalize(out, maxInputBytes) // defaults come as the library decoded them
	if err != nil {
		return nil, err
	}
	object, ok := plain.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("the input is %T, want an object", plain)
	}
	return object, nil
}

// property returns the schema of an input, nil when there is none.
func (s *schema) property(name string) map[string]any {
	if s == nil {
		return nil
	}
	props, _ := s.raw["properties"].(map[string]any)
	p, _ := props[name].(map[string]any)
	return p
}

// names lists the inputs the schema knows; closed reports whether there can be no others.
func (s *schema) names() (names []string, closed bool) {
	if s == nil {
		return nil, false
	}
	props, _ := s.raw["properties"].(map[string]any)
	for name := range props {
		names = append(names, name)
	}
	slices.Sort(names)
	_, patterns := s.raw["patternProperties"]
	return names, s.raw["additionalProperties"] == false && !patterns
}

// maxSchemaWork bounds how many subschemas may apply to one value.
const maxSchemaWork = 10_000

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
		for _, key := range sortedKeys(at) { // so that a file always has the same message
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
		return 0, errors.New("the references multiply beyond measure")
	}
	return total, nil
}

func (c *refCheck) follow(ref string) (int, error) {
	if n, ok := c.work[ref]; ok {
		if n == 0 {
			return 0, fmt.Errorf("$ref %s leads back to itself", ref)
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
		if name, ok := strings.CutPrefix(ref, "#/"+key+"/"); ok {
			defs, _ := c.root[key].(map[string]any)
			if target, ok := defs[name]; ok {
				return target, nil
			}
			return nil, fmt.Errorf("$ref %s: there is no such definition", ref)
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
			for _, name := range sortedKeys(subs) {
				out = append(out, subs[name])
			}
		}
	}
	return out
}
