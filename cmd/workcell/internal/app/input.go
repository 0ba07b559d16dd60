package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/session/transfer"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// SchemaOf returns the JSON Schema of the input of a workflow or an agent.
func SchemaOf(wf *workflow.Workflow) (map[string]any, error) {
	if doc := wf.Agent(); doc != nil {
		return tools.InputSchema(doc)
	}
	return wf.InputSchema(), nil
}

// ParseInput returns the values of named inputs and of a bare text, by the types of a schema's fields.
func ParseInput(wf *workflow.Workflow, fields, pairs map[string]string, text string) (map[string]any, error) {
	pairs, err := withText(fields, pairs, text)
	if err != nil {
		return nil, err
	}
	if wf.Agent() == nil {
		return wf.ParseInput(pairs)
	}
	input := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(pairs)) {
		err := KnownInput(name, fields)
		if err == nil {
			input[name], err = typedValue(name, fields[name], pairs[name])
		}
		if err != nil {
			return nil, Fail(ExitInvalid, err, "")
		}
	}
	return input, nil
}

// reportSkipped prints what of a workspace is not copied into sandboxes, but for version control's own.
func (a *App) reportSkipped(ctx context.Context, at transfer.Place) {
	skipped, err := transfer.CheckWorkspace(ctx, at)
	if err != nil || len(skipped) == 0 { // the copy itself fails with the error
		return
	}
	names := skipped[:min(len(skipped), 3)]
	more := ""
	if rest := len(skipped) - len(names); rest > 0 {
		more = fmt.Sprintf(" and %d more", rest)
	}
	a.Notice("notice: links and special files in %s are not copied: %s%s", at.Dir, strings.Join(names, ", "), more)
}

// withText adds a bare text to named inputs, under the field that is for it.
func withText(fields, pairs map[string]string, text string) (map[string]string, error) {
	if text == "" {
		return pairs, nil
	}
	field, err := textField(fields)
	if err != nil {
		return nil, err
	}
	if _, twice := pairs[field]; twice {
		return nil, UsageError(fmt.Errorf("input %s is specified twice", field), "quote values that contain spaces: "+field+"='…'")
	}
	out := map[string]string{field: text}
	maps.Copy(out, pairs)
	return out, nil
}

// InputFields returns the properties of an input schema with their types.
func InputFields(schema map[string]any) map[string]string {
	fields := map[string]string{}
	properties, _ := schema["properties"].(map[string]any)
	for name, p := range properties {
		property, _ := p.(map[string]any)
		fields[name] = schemaType(property["type"])
	}
	return fields
}

// schemaType returns the type of a property, which dotprompt writes as [type, null] when the field is optional.
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

// KnownInput refuses a name that the fields of an agent do not have, or that no input can have. A schema may allow others,
// but nothing in the agent's file then speaks of them.
func KnownInput(name string, fields map[string]string) error {
	if _, known := fields[name]; known || len(fields) == 0 && expr.IsIdent(name) {
		return nil
	}
	if len(fields) == 0 {
		return fmt.Errorf("invalid input name %q", sanitize.Cut(name, 60))
	}
	known := slices.Sorted(maps.Keys(fields))
	if near, ok := suggest.Closest(name, known); ok {
		return fmt.Errorf("unknown input %s, did you mean %s?", sanitize.Cut(name, 60), near)
	}
	return fmt.Errorf("unknown input %s, available inputs are %s", sanitize.Cut(name, 60), strings.Join(known, ", "))
}

// textField is the field that a bare text is for.
func textField(fields map[string]string) (string, error) {
	names := slices.Sorted(maps.Keys(fields))
	for _, name := range []string{"input", "task"} {
		if slices.Contains(names, name) || len(names) == 0 {
			return name, nil
		}
	}
	if len(names) == 1 {
		return names[0], nil
	}
	return "", UsageError(errors.New("the agent has no input for plain text"), "use NAME=VALUE with "+strings.Join(names, ", "))
}

// typedValue reads the value of an input as JSON where its field wants something else than text.
func typedValue(name, want, text string) (any, error) {
	if want == "string" || want == "" {
		return text, nil
	}
	v, err := expr.DecodeJSON([]byte(text))
	if err != nil {
		return nil, fmt.Errorf("input %s: %q is not a JSON value of type %s", name, sanitize.Cut(text, 60), want)
	}
	return v, nil
}
