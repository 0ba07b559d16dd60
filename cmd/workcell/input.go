package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session/transfer"
)

// maxInputBytes bounds an input file and a value that is read from one.
const maxInputBytes = 4 << 20

// inputFlags give a workflow's input.
type inputFlags struct {
	pairs []string
	file  string
}

func (f *inputFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringArrayVar(&f.pairs, "input", nil, "NAME=VALUE, or NAME=@FILE to read the value from a file; may be repeated")
	cmd.Flags().StringVar(&f.file, "input-file", "", "JSON or YAML file with the whole input, - for standard input; --input goes over it")
}

// read returns the input. parse turns the pairs into values of the right types.
func (f *inputFlags) read(stdin io.Reader, parse func(map[string]string) (map[string]any, error)) (map[string]any, error) {
	input := map[string]any{}
	if f.file != "" {
		var err error
		if input, err = readInputFile(stdin, f.file); err != nil {
			return nil, err
		}
	}
	pairs, err := parsePairs(f.pairs)
	if err != nil {
		return nil, err
	}
	values, err := parse(pairs)
	if err != nil {
		return nil, fail(exitInvalid, err, "see the workflow's input:")
	}
	maps.Copy(input, values)
	return input, nil
}

// strangeInputs returns the names that the schema's properties do not have. It may allow them, as JSON Schema does unless it
// is told not to, but most are typing errors, and what was meant has its default. A schema that speaks of further names
// in any other way is taken at its word.
func strangeInputs(input, schema map[string]any) []string {
	for _, key := range []string{
		"additionalProperties", "patternProperties", "unevaluatedProperties", "propertyNames", "$ref", "allOf", "anyOf", "oneOf", "if", "dependentSchemas",
	} {
		if _, ok := schema[key]; ok {
			return nil
		}
	}
	fields := inputFields(schema)
	var notices []string
	for _, name := range slices.Sorted(maps.Keys(input)) {
		if err := knownInput(name, fields); err != nil {
			notices = append(notices, err.Error())
		}
	}
	return notices
}

// parsePairs reads NAME=VALUE and NAME=@FILE.
func parsePairs(pairs []string) (map[string]string, error) {
	out := map[string]string{}
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if strings.HasPrefix(strings.TrimSpace(p), "{") {
			return nil, usageError(fmt.Errorf("input %q is not of the form NAME=VALUE", clip(p, 60)),
				"a whole input is read from a file: --input-file FILE, or --input-file - for standard input")
		}
		if !ok || name == "" {
			return nil, usageError(fmt.Errorf("input %q is not of the form NAME=VALUE", clip(p, 60)), "for example --input repo=acme/shop")
		}
		if _, twice := out[name]; twice {
			return nil, usageError(fmt.Errorf("input %s is given twice", name), "")
		}
		path, special := strings.CutPrefix(value, "@")
		switch {
		case special && strings.HasPrefix(path, "@"):
			value = path // @@ stands for a value that begins with @
		case special:
			raw, err := readLimited(nil, path)
			if err != nil {
				return nil, usageError(fmt.Errorf("input %s: %w", name, err), "@ reads a file; write @@ for a value that begins with @")
			}
			value = string(raw)
		}
		out[name] = value
	}
	return out, nil
}

// reportSkipped prints what of a workspace is not copied into sandboxes, but for version control's own.
func reportSkipped(ctx context.Context, w io.Writer, dir string) {
	skipped, err := transfer.CheckWorkspace(ctx, dir)
	if err != nil || len(skipped) == 0 { // the copy itself fails with the error
		return
	}
	names := skipped[:min(len(skipped), 3)]
	more := ""
	if rest := len(skipped) - len(names); rest > 0 {
		more = fmt.Sprintf(" and %d more", rest)
	}
	fmt.Fprintf(w, "workcell: notice: not copied from %s, as links and special files are not: %s%s\n", sanitize.Line(dir), sanitize.Line(strings.Join(names, ", ")), more)
}

// readInputFile reads a mapping.
func readInputFile(stdin io.Reader, path string) (map[string]any, error) {
	raw, err := readLimited(stdin, path)
	if err != nil {
		return nil, fail(exitInvalid, fmt.Errorf("input: %w", err), "")
	}
	input := map[string]any{}
	if err := yaml.Unmarshal(raw, &input); err != nil { // JSON is YAML
		return nil, fail(exitInvalid, fmt.Errorf("input %s: %w", path, err), "the file must hold one JSON or YAML mapping")
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
