package app

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/session/transfer"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// SchemaOf returns the JSON Schema of the input of a workflow or an agent, or nil if it is unknown. If the agent's file
// has no schema, the schema contains the names in the template.
func SchemaOf(wf *workflow.Workflow) (map[string]any, error) {
	doc := wf.Agent()
	if doc == nil {
		return wf.InputSchema(), nil
	}
	schema, err := tools.InputSchema(doc)
	if err != nil || schema != nil {
		return schema, err
	}
	names, known := templateNames(doc.Text())
	if !known {
		return nil, nil
	}
	properties := map[string]any{}
	for name := range names {
		properties[name] = map[string]any{}
	}
	return map[string]any{"properties": properties, "additionalProperties": false}, nil
}

// Unset returns the names printed by the template of an agent without an input schema and not set in input.
// It ignores names in helpers and blocks, such as {{#if x}}.
func Unset(wf *workflow.Workflow, input map[string]any) (unset []string) {
	doc := wf.Agent()
	if schema, err := tools.InputSchema(doc); err != nil || schema != nil {
		return nil
	}
	names, _ := templateNames(doc.Text())
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if _, set := input[name]; !set && !names[name] {
			unset = append(unset, name)
		}
	}
	return unset
}

// templateNames returns the names in a template, and whether a block reads them too. known is false for a helper or a
// partial, which may read and set any name.
func templateNames(text string) (names map[string]bool, known bool) {
	names = map[string]bool{}
	for _, tag := range tags.FindAllString(text, -1) {
		m := plainTag.FindStringSubmatch(tag)
		if m == nil {
			return nil, false
		}
		if name, _, _ := strings.Cut(m[2], "."); !slices.Contains([]string{"", "else", "this", "history"}, name) {
			names[name] = names[name] || m[1] != ""
		}
	}
	return names, true
}

// tags matches template tags. plainTag matches tags reading at most one input: {{x.y}}, {{{x}}}, {{#if x}}, and
// {{/if}}.
var (
	tags     = regexp.MustCompile(`\{\{[^{}]*\}\}`)
	plainTag = regexp.MustCompile(`^\{\{~?\s*([#^]?(?:if|unless|each|with|json)\s+)?([\w.]*)\s*~?\}\}$` +
		`|^\{\{~?(?:[/!]|\s*role\s+"\w*"\s*~?\}\}$)`)
)

// ParseInput converts named inputs and a plain text to values with the types of the schema's fields.
func ParseInput(wf *workflow.Workflow, fields, pairs map[string]string, text string) (map[string]any, error) {
	pairs, err := withText(fields, pairs, text)
	if err != nil {
		return nil, err
	}
	input := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		var err error
		if wf.Agent() != nil || fields != nil && len(fields) == 0 {
			err = KnownInput(name, fields)
		}
		if err == nil {
			input[name], err = typedValue(name, fields[name], pairs[name], wf.Agent() == nil)
		}
		if err != nil {
			return nil, Fail(ExitInvalid, err, "")
		}
	}
	return input, nil
}

// checkWorkspace returns an error if a workspace cannot be copied into sandboxes. It prints the links and special files
// that are not copied.
func (a *App) checkWorkspace(ctx context.Context, wf *workflow.Workflow, at transfer.Place) error {
	if at.Dir == "" {
		return nil
	}
	skipped, err := transfer.CheckWorkspace(ctx, at)
	switch {
	case err != nil && a.opts.Workspace != "":
		return UsageError(fmt.Errorf("--workspace %s: %w", at.Dir, err), "pass the directory to copy with --workspace DIR")
	case err != nil:
		return Fail(ExitInvalid, cmp.Or(wf.CheckWorkspace(ctx), err), "pass the directory to copy with --workspace DIR")
	case len(skipped) == 0:
		return nil
	}
	names := skipped[:min(len(skipped), 3)]
	more := ""
	if rest := len(skipped) - len(names); rest > 0 {
		more = fmt.Sprintf(" and %d more", rest)
	}
	a.Notice("notice: links and special files in %s are not copied: %s%s", at.Dir, strings.Join(names, ", "), more)
	return nil
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
	switch v := v.(type) {
	case string:
		return v
	case []any:
		for _, t := range v {
			if s, ok := t.(string); ok && s != "null" {
				return s
			}
		}
	case []string:
		for _, s := range v {
			if s != "null" {
				return s
			}
		}
	}
	return ""
}

// KnownInput returns an error for a name other than a field of an agent, or an invalid input name. A schema
// may allow other names, but the agent's file then does not use them.
func KnownInput(name string, fields map[string]string) error {
	_, known := fields[name]
	switch {
	case known || fields == nil && expr.IsIdent(name):
		return nil
	case fields == nil:
		return fmt.Errorf("invalid input name %q", sanitize.Cut(name, 60))
	case len(fields) == 0:
		return fmt.Errorf("unknown input %s, no input is used", sanitize.Cut(name, 60))
	}
	names := slices.Sorted(maps.Keys(fields))
	if near, ok := suggest.Closest(name, names); ok {
		return fmt.Errorf("unknown input %s, did you mean %s?", sanitize.Cut(name, 60), near)
	}
	return fmt.Errorf("unknown input %s, available inputs are %s", sanitize.Cut(name, 60), strings.Join(names, ", "))
}

// textField returns the field for plain text.
func textField(fields map[string]string) (string, error) {
	names := slices.Sorted(maps.Keys(fields))
	for _, name := range []string{"input", "task"} {
		if slices.Contains(names, name) || fields == nil {
			return name, nil
		}
	}
	if len(names) == 1 {
		return names[0], nil
	}
	if len(names) == 0 {
		return "", UsageError(errors.New("no input is used"),
			"read an input in the file, for example {{task}} in an agent, or omit it")
	}
	return "", UsageError(errors.New("the agent has no input for plain text"),
		"use NAME=VALUE with "+strings.Join(names, ", "))
}

// typedValue parses the value of an input as JSON if the type of the field is not text. If guess is set, it also parses
// values of fields without a type.
func typedValue(name, want, text string, guess bool) (any, error) {
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
