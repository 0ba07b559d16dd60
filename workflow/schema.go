package workflow

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// schema is the JSON Schema of a run's input.
type schema struct {
	raw      map[string]any
	resolved *jsonschema.Resolved
}

func (l *loader) schema(n *yamlnode.Node) *schema {
	if n.Kind != yamlnode.Mapping {
		l.Fail(n, "for example input: {type: object, properties: {repo: {type: string}}}",
			"input must be a JSON Schema, not %s", yamlnode.Kind(n))
		return nil
	}
	raw, _ := expr.Data(n, l.failExpr).(map[string]any)
	if t, ok := raw["type"]; ok && t != "object" {
		l.Fail(n, "a run's input maps names to values", "input must have type object, it has %s", clip(expr.Text(t)))
		return nil
	}
	if err := yamlnode.CheckReferences(raw); err != nil {
		l.Fail(n, "", "input: %v", err)
		return nil
	}
	data, _ := json.Marshal(raw) // plain data cannot fail
	var s jsonschema.Schema
	var resolved *jsonschema.Resolved
	err := json.Unmarshal(data, &s)
	if err == nil {
		resolved, err = s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	}
	if err != nil {
		l.Fail(n, "", "input is not a valid JSON Schema: %v", err)
		return nil
	}
	return &schema{raw: raw, resolved: resolved}
}

// check adds the schema's defaults to a copy of input and validates it.
func (s *schema) check(input map[string]any) (map[string]any, error) {
	plain, err := expr.Normalize(input, maxInputBytes)
	if err != nil {
		return nil, err
	}
	out, _ := plain.(map[string]any) // the type is unchanged
	if s == nil {
		return out, nil
	}
	if err := s.resolved.ApplyDefaults(&out); err != nil {
		return nil, err
	}
	if err := s.resolved.Validate(out); err != nil {
		return nil, fmt.Errorf("%s", strings.TrimPrefix(err.Error(), "validating root: "))
	}
	plain, err = expr.Normalize(out, maxInputBytes) // defaults have the types of the library's decoder
	out, _ = plain.(map[string]any)
	return out, err
}

// names returns the input names the schema defines. closed reports whether it allows no other names.
func (s *schema) names() (names []string, closed bool) {
	if s == nil {
		return nil, false
	}
	props, _ := s.raw["properties"].(map[string]any)
	_, patterns := s.raw["patternProperties"]
	return sortedKeys(props), s.raw["additionalProperties"] == false && !patterns
}
