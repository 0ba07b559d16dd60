package app

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// SchemaOf returns the JSON Schema of the input of a workflow or an agent, or nil if it is unknown. If the agent's file
// has no schema, the schema contains the inputs of the template.
func SchemaOf(wf *workflow.Workflow) (map[string]any, error) {
	doc := wf.Agent()
	if doc == nil {
		return wf.InputSchema(), nil
	}
	schema, err := tools.InputSchema(doc)
	if err != nil || schema != nil {
		return schema, err
	}
	inputs, known := templateInputs(doc.Text())
	if !known {
		return nil, nil
	}
	properties := map[string]any{}
	for name := range inputs {
		properties[name] = map[string]any{}
	}
	return map[string]any{"properties": properties, "additionalProperties": false}, nil
}

// Unset returns the inputs that the template of an agent prints and input does not set. It returns nil if the agent has
// an input schema. It omits inputs that a helper or a block also reads, such as {{#if x}}. wf must be an agent.
func Unset(wf *workflow.Workflow, input map[string]any) (unset []string) {
	doc := wf.Agent()
	if schema, err := tools.InputSchema(doc); err != nil || schema != nil {
		return nil
	}
	inBlock, _ := templateInputs(doc.Text())
	for _, name := range slices.Sorted(maps.Keys(inBlock)) {
		if _, set := input[name]; !set && !inBlock[name] {
			unset = append(unset, name)
		}
	}
	return unset
}

// notInputs are names with a meaning in every template. The empty name is the end of a block or a comment.
var notInputs = []string{"", "else", "this", "history"}

// contexts are the blocks in which a name is a field of the block's value or, without such a field, an input.
var contexts = []string{"each", "with"}

// templateInputs returns the inputs of a template, and for each whether a block or a helper, such as {{#if x}}, also
// reads it. known is false if the template may read any name, for example in a partial.
func templateInputs(text string) (inputs map[string]bool, known bool) {
	inputs = map[string]bool{}
	depth := 0 // number of open contexts
	for _, tag := range tags.FindAllString(comments.ReplaceAllString(text, ""), -1) {
		m := plainTag.FindStringSubmatch(tag)
		if m == nil {
			return nil, false
		}
		helper, end := m[1], m[3]
		name, _, _ := strings.Cut(m[2], ".")
		if !slices.Contains(notInputs, name) {
			if depth > 0 {
				return nil, false
			}
			inputs[name] = inputs[name] || helper != ""
		}
		if slices.Contains(contexts, helper) {
			depth++
		} else if slices.Contains(contexts, end) {
			depth--
		}
	}
	return inputs, true
}

// comments matches comments, which may contain tags. tags matches template tags. plainTag matches tags reading at most
// one input: {{x.y}}, {{{x}}}, {{#if x}}, and {{/if}}. Its groups are the helper, the input, and the name of
// an ended block.
var (
	comments = regexp.MustCompile(`(?s)\{\{~?!--.*?--~?\}\}`)
	tags     = regexp.MustCompile(`\{\{[^{}]*\}\}`)
	plainTag = regexp.MustCompile(`^\{\{~?\s*(?:[#^]?(if|unless|each|with|json)\s+)?([\w.]*)\s*~?\}\}$` +
		`|^\{\{~?(?:!|/\s*(\w*)|\s*role\s+"\w*"\s*~?\}\}$)`)
)

// ParseInput converts named inputs and a plain text to values with the types of the schema's fields.
func ParseInput(wf *workflow.Workflow, fields, pairs map[string]string, text string) (map[string]any, error) {
	pairs, err := withText(fields, pairs, text)
	if err != nil {
		return nil, err
	}
	agent := wf.Agent() != nil
	noInputs := fields != nil && len(fields) == 0
	input := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		if agent || noInputs { // the schema of a workflow decides about other names, unless it allows none
			if err := CheckInputName(name, fields); err != nil {
				return nil, Fail(ExitInvalid, err, "")
			}
		}
		value, err := parseValue(name, fields[name], pairs[name], !agent)
		if err != nil {
			return nil, Fail(ExitInvalid, err, "")
		}
		input[name] = value
	}
	return input, nil
}

// withText adds a plain text to named inputs, under the field returned by textField.
func withText(fields, pairs map[string]string, text string) (map[string]string, error) {
	if text == "" {
		return pairs, nil
	}
	field, err := textField(fields)
	if err != nil {
		return nil, err
	}
	if _, twice := pairs[field]; twice {
		return nil, UsageError(fmt.Errorf("input %s is specified twice", field),
			"quote values that contain spaces: "+field+"='…'")
	}
	out := map[string]string{field: text}
	maps.Copy(out, pairs)
	return out, nil
}

// InputFields returns the properties of an input schema with their types. It returns nil if the schema defines no
// properties and allows additional properties.
func InputFields(schema map[string]any) map[string]string {
	properties, _ := schema["properties"].(map[string]any)
	if len(properties) == 0 && schema["additionalProperties"] != false {
		return nil
	}
	fields := map[string]string{}
	for name, p := range properties {
		property, _ := p.(map[string]any)
		fields[name] = schemaType(property["type"])
	}
	return fields
}

// schemaType returns the type of a property. dotprompt writes the type of an optional field as [type, null].
func schemaType(v any) string {
	if name, ok := v.(string); ok {
		return name
	}
	list, _ := v.([]any)
	for _, t := range list {
		if name, ok := t.(string); ok && name != "null" {
			return name
		}
	}
	return ""
}

// CheckInputName returns an error if name is not a field of the schema. The schema may allow other names, but an
// agent's file then does not use them. If the schema is unknown (fields is nil), name must be an identifier.
func CheckInputName(name string, fields map[string]string) error {
	_, known := fields[name]
	switch {
	case known || fields == nil && expr.IsIdent(name):
		return nil
	case fields == nil:
		return fmt.Errorf("invalid input name %q", sanitize.Cut(name, 60))
	case len(fields) == 0:
		return fmt.Errorf("unknown input %s; no inputs are available", sanitize.Cut(name, 60))
	}
	names := slices.Sorted(maps.Keys(fields))
	if near, ok := suggest.Closest(name, names); ok {
		return fmt.Errorf("unknown input %s; did you mean %s?", sanitize.Cut(name, 60), near)
	}
	return fmt.Errorf("unknown input %s; available inputs are %s", sanitize.Cut(name, 60), strings.Join(names, ", "))
}

// textField returns the field for plain text. If the fields are unknown, it is input.
func textField(fields map[string]string) (string, error) {
	if fields == nil {
		return "input", nil
	}
	for _, name := range []string{"input", "task"} {
		if _, ok := fields[name]; ok {
			return name, nil
		}
	}
	names := slices.Sorted(maps.Keys(fields))
	if len(names) == 1 {
		return names[0], nil
	}
	if len(names) == 0 {
		return "", UsageError(errors.New("no inputs are available"),
			"add an input to the file, for example {{task}} in an agent, or omit the text")
	}
	return "", UsageError(errors.New("plain text requires an input named input or task"),
		"use NAME=VALUE with "+strings.Join(names, ", "))
}

// parseValue parses the value of an input as JSON if the type of the field is not text. If guess is set, it also parses
// values of fields without a type.
func parseValue(name, want, text string, guess bool) (any, error) {
	if want == "string" || want == "" && !guess {
		return text, nil
	}
	v, err := expr.DecodeJSON([]byte(text))
	switch {
	case err != nil && want == "":
		return text, nil
	case err != nil:
		return nil, fmt.Errorf("input %s: %q is not a JSON value of type %s", name, sanitize.Cut(text, 60), want)
	}
	return v, nil
}
