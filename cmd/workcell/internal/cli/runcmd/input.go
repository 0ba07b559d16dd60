package runcmd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/yamlnode"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// maxInputBytes is the maximum size of an input file, and of a value read from a file.
const maxInputBytes = 4 << 20

// input returns the input of a run: the values in a file, if specified, overridden by the arguments.
func (a *command) input(
	ctx context.Context, wf *workflow.Workflow, file string, args []string,
) (map[string]any, error) {
	input, err := a.readInputFile(ctx, file)
	if err != nil {
		return nil, err
	}
	schema, err := app.SchemaOf(wf)
	if err != nil {
		return nil, err
	}
	doc, fields, text := wf.Agent(), app.InputFields(schema), ""
	if doc != nil {
		args, text = splitArgs(args, fields)
	}
	if text == "-" {
		if text, err = a.readText(ctx, "-"); err != nil {
			return nil, app.UsageError(fmt.Errorf("input -: %w", err), "")
		}
	}
	pairs, err := a.parsePairs(ctx, args)
	if err != nil {
		return nil, err
	}
	if doc != nil {
		names := slices.Sorted(maps.Keys(pairs))
		if schema["additionalProperties"] == false { // even if the template's names are the schema
			names = append(names, slices.Sorted(maps.Keys(input))...)
		}
		for _, name := range names {
			if err := app.CheckInputName(name, fields); err != nil {
				known := strings.Join(slices.Sorted(maps.Keys(fields)), ", ")
				hint := fmt.Sprintf("the inputs are %s; for text that starts with %q, use FIELD=%[2]s…", known, name+"=")
				return nil, app.Fail(app.ExitInvalid, err, hint)
			}
		}
	}
	values, err := app.ParseInput(wf, fields, pairs, text)
	if err != nil && doc == nil {
		err = app.Fail(app.ExitInvalid, err, "check input: in the workflow")
	}
	if err != nil {
		return nil, err
	}
	maps.Copy(input, values)
	if doc == nil {
		a.reportStrange(input, schema)
		return input, nil
	}
	if err := tools.CheckInput(doc, input); err != nil {
		return nil, app.Fail(app.ExitInvalid, err, "pass NAME=VALUE or --input-file FILE")
	}
	for _, name := range app.Unset(wf, input) {
		a.Notice("input %s is empty; to set it, pass %[1]s=VALUE", name)
	}
	return input, nil
}

// reportStrange prints input names missing in a workflow's schema. JSON Schema allows such names by default,
// but most of them are typing errors, and the intended field silently keeps the default. If the schema mentions
// additional names in any form, reportStrange prints nothing.
func (a *command) reportStrange(input, schema map[string]any) {
	for _, key := range []string{
		"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "allOf", "anyOf", "oneOf",
		"if", "dependentSchemas",
	} {
		if schema[key] != nil {
			return
		}
	}
	fields := app.InputFields(schema)
	for _, name := range slices.Sorted(maps.Keys(input)) {
		if err := app.CheckInputName(name, fields); err != nil {
			a.Notice("%v", err)
		}
	}
}

// parsePairs parses NAME=VALUE and NAME=@FILE.
func (a *command) parsePairs(ctx context.Context, pairs []string) (map[string]string, error) {
	out := map[string]string{}
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if strings.HasPrefix(strings.TrimSpace(p), "{") {
			return nil, app.UsageError(fmt.Errorf("invalid input %q: must be NAME=VALUE", sanitize.Cut(p, 60)),
				"to read all inputs from a file, use --input-file FILE, or --input-file - for standard input")
		}
		if !ok || name == "" {
			return nil, app.UsageError(fmt.Errorf("invalid input %q: must be NAME=VALUE", sanitize.Cut(p, 60)),
				"for example --input repo=acme/shop")
		}
		if _, twice := out[name]; twice {
			return nil, app.UsageError(fmt.Errorf("input %s is specified twice", name), "")
		}
		path, special := strings.CutPrefix(value, "@")
		switch {
		case special && strings.HasPrefix(path, "@"):
			value = path // @@ escapes a leading @
		case special:
			var err error
			if value, err = a.readText(ctx, path); err != nil {
				return nil, app.UsageError(fmt.Errorf("input %s: %w", name, err),
					"@ reads a file; use @@ for a value that starts with @")
			}
		}
		if !utf8.ValidString(value) {
			return nil, app.UsageError(fmt.Errorf("input %s is not valid UTF-8", name), "encode it, for example with base64")
		}
		out[name] = value
	}
	return out, nil
}

// readInputFile reads a mapping from a file. Without a path, it returns an empty mapping.
func (a *command) readInputFile(ctx context.Context, path string) (map[string]any, error) {
	if path == "" {
		return map[string]any{}, nil
	}
	raw, err := a.readLimited(ctx, path)
	if err != nil {
		return nil, app.Fail(app.ExitInvalid, fmt.Errorf("input: %w", err), "")
	}
	var doc, second yaml.Node
	var input map[string]any
	documents := yaml.NewDecoder(bytes.NewReader(raw)) // JSON is valid YAML
	if err = documents.Decode(&doc); err == nil {
		keepDates(&doc)
		if err = doc.Decode(&input); err == nil && !errors.Is(documents.Decode(&second), io.EOF) {
			err = errors.New("several documents")
		}
	}
	if input == nil {
		input = map[string]any{} // the file contains only null or comments
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, app.Fail(app.ExitInvalid, fmt.Errorf("input %s: %w", path, err),
			"the file must contain one JSON or YAML mapping")
	}
	return input, nil
}

// keepDates turns dates into text, because JSON has no dates.
func keepDates(n *yaml.Node) {
	if n.ShortTag() == "!!timestamp" {
		n.Tag = "!!str"
	}
	for _, sub := range n.Content {
		keepDates(sub)
	}
}

// readText reads a value from a file, or from standard input for "-".
func (a *command) readText(ctx context.Context, path string) (string, error) {
	raw, err := a.readLimited(ctx, path)
	if err == nil && !utf8.Valid(raw) {
		err = errors.New("not valid UTF-8; encode it, for example with base64")
	}
	return string(raw), err
}

// readLimited reads a file, or standard input for "-".
func (a *command) readLimited(ctx context.Context, path string) ([]byte, error) {
	if path == "-" {
		return a.ReadStdin(ctx, maxInputBytes)
	}
	raw, err := yamlnode.ReadFile(path, maxInputBytes)
	if err == nil && len(raw) > maxInputBytes {
		err = errors.New("larger than 4 MiB")
	}
	return raw, err
}

// splitArgs separates NAME=VALUE pairs from text. NAME must be a field or a possible field. It joins several words
// without quotes to one text.
func splitArgs(args []string, fields map[string]string) (pairs []string, text string) {
	var words []string
	for _, arg := range args {
		name, _, ok := strings.Cut(arg, "=")
		_, known := fields[name]
		if ok && (known || expr.IsIdent(name)) {
			pairs = append(pairs, arg)
		} else {
			words = append(words, arg)
		}
	}
	return pairs, strings.Join(words, " ")
}
