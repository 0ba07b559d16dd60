package runcmd

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/yamlnode"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// maxInputBytes bounds an input file and a value that is read from one.
const maxInputBytes = 4 << 20

// input returns the input of a run: the values of a file, if one is named, and those of arguments over them.
func (a *command) input(wf *workflow.Workflow, file string, args []string) (map[string]any, error) {
	input, err := readInputFile(a.Stdin, file)
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
	pairs, err := parsePairs(args)
	if err != nil {
		return nil, err
	}
	if doc != nil {
		for _, name := range slices.Sorted(maps.Keys(pairs)) {
			if err := app.KnownInput(name, fields); err != nil {
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
	return input, nil
}

// reportStrange prints the names that a workflow's schema does not have. It may allow them, as JSON Schema does unless
// it is told not to, but most are typing errors, and what was meant has its default. A schema that speaks of further
// names in any other way is taken at its word.
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
		if err := app.KnownInput(name, fields); err != nil {
			a.Notice("notice: %v", err)
		}
	}
}

// parsePairs reads NAME=VALUE and NAME=@FILE.
func parsePairs(pairs []string) (map[string]string, error) {
	out := map[string]string{}
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if strings.HasPrefix(strings.TrimSpace(p), "{") {
			return nil, app.UsageError(fmt.Errorf("invalid input %q: must be NAME=VALUE", sanitize.Cut(p, 60)),
				"to read all inputs from a file, use --input-file FILE, or --input-file - for standard input")
		}
		if !ok || name == "" {
			return nil, app.UsageError(fmt.Errorf("invalid input %q: must be NAME=VALUE", sanitize.Cut(p, 60)), "for example --input repo=acme/shop")
		}
		if _, twice := out[name]; twice {
			return nil, app.UsageError(fmt.Errorf("input %s is specified twice", name), "")
		}
		path, special := strings.CutPrefix(value, "@")
		switch {
		case special && strings.HasPrefix(path, "@"):
			value = path // @@ stands for a value that begins with @
		case special:
			raw, err := readLimited(nil, path)
			if err != nil {
				return nil, app.UsageError(fmt.Errorf("input %s: %w", name, err), "@ reads a file; use @@ for a value that starts with @")
			}
			value = string(raw)
		}
		out[name] = value
	}
	return out, nil
}

// readInputFile reads a mapping, an empty one without a path.
func readInputFile(stdin io.Reader, path string) (map[string]any, error) {
	if path == "" {
		return map[string]any{}, nil
	}
	raw, err := readLimited(stdin, path)
	if err != nil {
		return nil, app.Fail(app.ExitInvalid, fmt.Errorf("input: %w", err), "")
	}
	input := map[string]any{}
	if err := yamlnode.Unmarshal(raw, &input); err != nil { // JSON is YAML
		return nil, app.Fail(app.ExitInvalid, fmt.Errorf("input %s: %w", path, err),
			"the file must contain one JSON or YAML mapping")
	}
	return input, nil
}

// readLimited reads a file, or stdin for "-" when there is one.
func readLimited(stdin io.Reader, path string) ([]byte, error) {
	src := stdin
	if path != "-" || stdin == nil {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer f.Close() // only read from
		src = f
	}
	raw, err := io.ReadAll(io.LimitReader(src, maxInputBytes+1))
	if err == nil && len(raw) > maxInputBytes {
		err = errors.New("larger than 4 MiB")
	}
	return raw, err
}

// splitArgs separates NAME=VALUE, where NAME is a field or could be one, from text; several words without quotes are
// one text.
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
