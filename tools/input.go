package tools

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/xeipuuv/gojsonschema"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

// InputSchema returns the JSON Schema of an agent's input, or nil if the file has none. It does not require the agent
// to be loaded.
func InputSchema(doc *frontmatter.Document) (map[string]any, error) {
	source, err := doc.Source()
	if err != nil {
		return nil, err
	}
	parsed, err := parseSource(string(source))
	if err != nil || parsed.Input.Schema == nil {
		return nil, err
	}
	return picoschema(parsed.Input.Schema)
}

// CheckInput reports whether input matches the input schema of an agent's file. If not, it returns an error wrapping
// backend.ErrInvalid. The error lists the invalid fields but never their values. Missing fields get the values of
// `input.default` in the file. The agent does not have to be loaded. Agent.Run does the same check first.
func CheckInput(doc *frontmatter.Document, input map[string]any) error {
	schema, err := InputSchema(doc)
	if err == nil {
		_, err = templateInput(doc, schema, input)
	}
	if err != nil {
		return fmt.Errorf("agent %s (%s): %w", promptName(doc.File), doc.File, err)
	}
	return nil
}

// templateInput returns the template's data: input merged over the file's defaults.
func templateInput(doc *frontmatter.Document, schema, input map[string]any) (any, error) {
	data := map[string]any{}
	maps.Copy(data, doc.Meta.Input)
	maps.Copy(data, input)
	plain, err := expr.Normalize(data, math.MaxInt) // the values that Genkit would read from JSON
	if err != nil {
		return nil, &sanitize.Error{Text: "cannot encode the input as JSON: " + err.Error(), Err: backend.ErrInvalid}
	}
	variables := neutral(plain)
	if schema == nil {
		return expr.Map(variables, exactText), nil
	}
	// Use Genkit's validator, to ensure the same result of both checks. If the validator cannot read the schema, Genkit
	// reports the error.
	result, err := gojsonschema.Validate(gojsonschema.NewGoLoader(schema), gojsonschema.NewGoLoader(variables))
	if err != nil || result.Valid() {
		return variables, nil
	}
	var problems []string
	for _, e := range result.Errors() {
		problems = append(problems, inputProblem(e, schema))
	}
	slices.Sort(problems)
	return nil, &sanitize.Error{Text: strings.Join(slices.Compact(problems), "; "), Err: backend.ErrInvalid}
}

// inputProblem formats an error of the validator like the errors for other arguments.
func inputProblem(e gojsonschema.ResultError, schema map[string]any) string {
	field := e.Field()
	detail := func(key string) string { return fmt.Sprint(e.Details()[key]) }
	switch e.Type() {
	case "required":
		return fmt.Sprintf("input %s is missing", sanitize.Clip(inside(field, detail("property"))))
	case "additional_property_not_allowed":
		name := inside(field, detail("property"))
		return fmt.Sprintf("unknown input %s%s", sanitize.Clip(name), nearInput(name, schema))
	case "invalid_type":
		return fmt.Sprintf("input %s must be %s, not %s", sanitize.Clip(field), wantedKind(detail("expected")),
			toolspec.KindOf(e.Value()))
	case "enum":
		return fmt.Sprintf("input %s must be one of %s", sanitize.Clip(field), detail("allowed"))
	}
	return fmt.Sprintf("input %s: %s", sanitize.Clip(field), e.Description())
}

// inside returns the path of a property of the object at path.
func inside(path, property string) string {
	if path == gojsonschema.STRING_CONTEXT_ROOT {
		return property
	}
	return path + "." + property
}

func nearInput(name string, schema map[string]any) string {
	properties, _ := schema["properties"].(map[string]any)
	known := slices.Sorted(maps.Keys(properties))
	if near, ok := suggest.Closest(name, known); ok {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	return "; available: " + strings.Join(known, ", ")
}

// wantedKind describes the required type of a value. types comes from the validator, for example "integer" or
// "[string,null]".
func wantedKind(types string) string {
	words := map[string]string{
		"string": "text", "integer": "a whole number", "number": "a number", "boolean": "true or false", "array": "a list",
		"object": "an object",
	}
	var kinds []string
	for t := range strings.SplitSeq(strings.Trim(types, "[]"), ",") {
		if words[t] != "" {
			kinds = append(kinds, words[t])
		}
	}
	return cmp.Or(strings.Join(kinds, " or "), "null")
}
