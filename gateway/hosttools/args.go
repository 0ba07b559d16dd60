package hosttools

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

// Limits of arguments in addition to their size.
const (
	maxArgDepth  = 64     // nesting depth
	maxArgValues = 50_000 // a value of three bytes needs eighty bytes in memory
)

// readArgs parses the arguments of a call strictly. It rejects input with two interpretations, to ensure the same
// values for policy, approval, and handler. It returns the arguments as data, and as JSON with sorted keys.
func readArgs(raw json.RawMessage, most int64) (map[string]any, json.RawMessage, *Error) {
	invalid := func(format string, args ...any) (map[string]any, json.RawMessage, *Error) {
		return nil, nil, toolspec.Failf(toolspec.CodeInvalid, format, args...)
	}
	tooLarge := func(format string, args ...any) (map[string]any, json.RawMessage, *Error) {
		return nil, nil, toolspec.Failf(toolspec.CodeTooLarge, format, args...).
			WithRemediation("Pass less, or pass it in several calls.")
	}
	switch {
	case int64(len(raw)) > most:
		return tooLarge("the arguments have %d bytes, the limit is %d", len(raw), most)
	case len(raw) == 0 || string(raw) == "null":
		return map[string]any{}, json.RawMessage("{}"), nil
	case !utf8.Valid(raw):
		return invalid("the arguments are not valid UTF-8")
	}
	d := &argReader{Decoder: json.NewDecoder(bytes.NewReader(raw))}
	d.UseNumber()
	v, err := d.value(1)
	if err == nil {
		if _, err = d.Token(); errors.Is(err, io.EOF) {
			err = nil
		} else if err == nil {
			err = errors.New("more than one value")
		}
	}
	if d.values > maxArgValues {
		return tooLarge("the arguments have more than %d values", maxArgValues)
	}
	if err != nil {
		return invalid("the arguments are not valid JSON: %s", plain(err.Error(), 200))
	}
	object, ok := v.(map[string]any)
	if !ok {
		return invalid("the arguments must be an object")
	}
	canonical, _ := sanitize.JSON(object) // values from JSON, so the error is always nil
	return object, canonical, nil
}

type argReader struct {
	*json.Decoder
	values int
}

var errManyValues = errors.New("too many values")

func (d *argReader) value(depth int) (any, error) {
	if depth > maxArgDepth {
		return nil, fmt.Errorf("it is nested more than %d levels deep", maxArgDepth)
	}
	if d.values++; d.values > maxArgValues {
		return nil, errManyValues
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '{' {
			return d.object(depth)
		}
		return d.list(depth)
	case json.Number:
		return number(t)
	}
	return t, nil
}

func (d *argReader) object(depth int) (any, error) {
	out := map[string]any{}
	var folded map[string]bool
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return nil, err
		}
		key, _ := t.(string) // an object has only string keys
		// Go matches keys case-insensitively, and other parsers take the first or the last duplicate.
		if folded[fold(key)] {
			return nil, fmt.Errorf("duplicate key %q, possibly in another spelling", plain(key, 80))
		}
		if folded == nil {
			folded = map[string]bool{}
		}
		folded[fold(key)] = true
		if out[key], err = d.value(depth + 1); err != nil {
			return nil, err
		}
	}
	_, err := d.Token() // closing bracket
	return out, err
}

func (d *argReader) list(depth int) (any, error) {
	out := []any{}
	for d.More() {
		v, err := d.value(depth + 1)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	_, err := d.Token()
	return out, err
}

// fold returns the same text for all keys treated as equal by encoding/json.
func fold(key string) string {
	return strings.Map(func(r rune) rune {
		for {
			next := unicode.SimpleFold(r)
			if next <= r {
				return next
			}
			r = next
		}
	}, key)
}

// number is expr.Number, but refuses large whole numbers, which float64 would round.
func number(n json.Number) (any, error) {
	v, err := expr.Number(n)
	if err != nil {
		return nil, errors.New("a number is out of range")
	}
	if _, rounded := v.(float64); rounded && !strings.ContainsAny(n.String(), ".eE") {
		return nil, errors.New("a whole number has more than 64 bits; pass it as a string")
	}
	return v, nil
}

// maxFaults is the maximum number of listed faults.
const maxFaults = 20

// validate checks arguments against the schema of a tool. The error lists the faults by property.
func (e *entry) validate(args map[string]any) *Error {
	faults := e.spelling.misspelt(args)
	if err := e.resolved.Validate(args); err != nil {
		faults = append(faults, e.faults(args)...)
		if len(faults) == 0 {
			faults = []string{fault(err)}
		}
	}
	if len(faults) == 0 {
		return nil
	}
	return toolspec.Failf(toolspec.CodeInvalid, "the arguments do not fit %s: %s",
		e.tool.FullName(), strings.Join(faults, "; "))
}

func (e *entry) faults(args map[string]any) []string {
	var faults []string
	properties, _ := e.tool.Input["properties"].(map[string]any)
	required, _ := e.tool.Input["required"].([]any)
	for _, name := range required {
		if name, ok := name.(string); ok {
			if _, given := args[name]; !given {
				faults = append(faults, fmt.Sprintf("%s is missing", plain(name, 80)))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if len(faults) >= maxFaults {
			return append(faults, "…")
		}
		property, known := properties[name]
		if !known {
			if e.tool.Input["additionalProperties"] == false && e.tool.Input["patternProperties"] == nil {
				faults = append(faults, fmt.Sprintf("unknown argument %q", plain(name, 80)))
			}
			continue
		}
		alone := map[string]any{"properties": map[string]any{name: property}}
		for _, key := range []string{"$schema", "$defs", "definitions"} {
			if v, ok := e.tool.Input[key]; ok {
				alone[key] = v
			}
		}
		resolved, err := resolve(alone)
		if err != nil {
			continue
		}
		if err := resolved.Validate(map[string]any{name: args[name]}); err != nil {
			faults = append(faults, plain(name, 80)+": "+fault(err))
		}
	}
	return faults
}

// schemaPath matches the path in the schema before an error.
var schemaPath = regexp.MustCompile(`(?s)\A(?:validating .*?: )+`)

// rational matches whole numbers printed as fractions or decimals by the schema library.
var rational = regexp.MustCompile(`\b([0-9]+)(?:/1|\.0+)\b`)

// fault returns the error text without the path in the schema.
func fault(err error) string {
	text := schemaPath.ReplaceAllString(err.Error(), "")
	return plain(rational.ReplaceAllString(strings.ReplaceAll(text, "\n", " "), "$1"), 200)
}
