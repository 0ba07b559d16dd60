package toolspec

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
)

// TextMap is an object of names and texts. It also accepts other forms models send: a list of "name=value" texts, a
// list of objects with a name and a value, and an object as JSON text.
type TextMap map[string]string

// UnmarshalJSON decodes all accepted forms.
func (m *TextMap) UnmarshalJSON(b []byte) error {
	var v any
	if err := decodeNumber(b, &v); err != nil {
		return err
	}
	if s, ok := v.(string); ok && decodeNumber([]byte(s), &v) != nil {
		return fmt.Errorf("must be an object of names to texts")
	}
	out := TextMap{}
	switch v := v.(type) {
	case nil:
	case map[string]any:
		for name, value := range v {
			text, ok := scalarText(value)
			if !ok {
				return fmt.Errorf("the value of %q must be text, not %s", sanitize.Clip(name), KindOf(value))
			}
			out[name] = text
		}
	case []any:
		for i, item := range v {
			name, value, ok := pair(item)
			if !ok {
				return fmt.Errorf("item %d must be \"name=value\" or an object with name and value", i)
			}
			out[name] = value
		}
	default:
		return fmt.Errorf("must be an object of names to texts, not %s", KindOf(v))
	}
	*m = out
	return nil
}

// pair decodes an item of a list given instead of an object.
func pair(item any) (name, value string, ok bool) {
	switch item := item.(type) {
	case string:
		return strings.Cut(item, "=")
	case map[string]any:
		for _, keys := range [][2]string{{"name", "value"}, {"key", "value"}, {"path", "contents"}, {"path", "content"},
			{"path", "text"}} {
			n, okName := item[keys[0]].(string)
			v, okValue := scalarText(item[keys[1]])
			if okName && okValue {
				return n, v, true
			}
		}
	}
	return "", "", false
}

// aliases are other names models use for arguments. They are accepted but not documented.
var aliases = map[string]string{
	"timeout": "timeout_seconds", "timeout_sec": "timeout_seconds", "timeout_secs": "timeout_seconds",
	"timeout_s": "timeout_seconds",
	"argv":      "cmd", "shell_command": "command", "workdir": "cwd", "working_directory": "cwd", "working_dir": "cwd",
	"environment": "env", "content": "contents", "data": "text", "content_b64": "contents_b64", "base64": "contents_b64",
	"file_path": "path", "filepath": "path", "filename": "path", "directory": "path", "dir": "path",
	"source": "code", "language": "runtime", "lang": "runtime", "arguments": "args", "sandbox": "sandbox_id",
	"background": "stream", "session": "session_key", "session_name": "session_key", "since": "since_seq",
	"old_text": "old_string", "old_str": "old_string", "oldstring": "old_string", "search": "old_string",
	"new_text": "new_string", "new_str": "new_string", "newstring": "new_string", "replace": "new_string",
	"replacement": "new_string",
	"replaceall":  "replace_all", "start_line": "line_offset", "max_lines": "line_limit", "max_entries": "limit",
}

// Bound is the range of an integer argument. It is part of the schema, and every call is checked. If Most or Default is
// zero, the argument has no maximum or no default. A call may omit the number, or pass zero for the default.
type Bound struct {
	Name                 string
	Least, Most, Default int64
}

// Describe adds the bound to the schema of an input.
func (b Bound) Describe(input map[string]any) {
	properties, _ := input["properties"].(map[string]any)
	property, _ := properties[b.Name].(map[string]any)
	property["minimum"] = float64(b.Least)
	if b.Most != 0 {
		property["maximum"] = float64(b.Most)
	}
	if b.Default != 0 {
		property["default"] = float64(b.Default)
	}
}

// check returns a failure if a value is out of range.
func (b Bound) check(value int64) *Error {
	switch {
	case value < 0 && b.Most == 0:
		return Failf(CodeInvalid, "%s is %d, must not be negative", b.Name, value)
	case value != 0 && (value < b.Least || b.Most != 0 && value > b.Most):
		return Failf(CodeInvalid, "%s must be %d to %d, not %d", b.Name, b.Least, b.Most, value)
	}
	return nil
}

// CheckBounds checks the numbers of an input.
func CheckBounds[In any](in *In, bounds []Bound) *Error {
	for _, a := range arguments(reflect.ValueOf(in).Elem()) {
		for _, b := range bounds {
			if field := reflect.Indirect(a.field); a.name == b.Name && field.IsValid() {
				if fail := b.check(field.Int()); fail != nil {
					return fail
				}
			}
		}
	}
	return nil
}

// argument is a field of an input.
type argument struct {
	name     string
	required bool
	field    reflect.Value
}

// arguments returns the fields of an input, including the fields of embedded structs.
func arguments(in reflect.Value) []argument {
	var list []argument
	for _, f := range reflect.VisibleFields(in.Type()) {
		if name, opts, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			list = append(list, argument{name: name, required: !strings.Contains(opts, "omitempty"),
				field: in.FieldByIndex(f.Index)})
		}
	}
	return list
}

// DecodeInput decodes a model's arguments into In, a struct with `json` tags. It accepts harmless deviations (aliases,
// numbers as text) and reports all other problems at once. A required text must not be empty, unless the type is
// *string.
func DecodeInput[In any](raw json.RawMessage) (In, *Error) {
	var in In
	values, fail := object(raw)
	if fail != nil {
		return in, fail
	}
	args := arguments(reflect.ValueOf(&in).Elem())
	var problems []string
	values = renameAliases(values, args)
	for name := range values {
		if !slices.ContainsFunc(args, func(a argument) bool { return a.name == name }) {
			problems = append(problems, unknownArgument(name, args))
		}
	}
	slices.Sort(problems)
	for _, a := range args {
		value, ok := values[a.name]
		switch {
		case ok && string(value) != "null":
			if err := a.set(value); err != nil {
				problems = append(problems, err.Error())
			}
		case a.required:
			problems = append(problems, a.name+" is required")
		}
	}
	if len(problems) > 0 {
		return in, Failf(CodeInvalid, "%s", strings.Join(problems, "; "))
	}
	return in, nil
}

// set sets the argument.
func (a argument) set(value json.RawMessage) error {
	field := a.field
	maybeEmpty := field.Kind() == reflect.Pointer
	if maybeEmpty {
		field.Set(reflect.New(field.Type().Elem()))
		field = field.Elem()
	}
	err := setArgument(field, a.name, value)
	switch {
	case err != nil:
		return err
	case a.required && !maybeEmpty && field.Kind() == reflect.String && field.Len() == 0:
		return fmt.Errorf("%s is empty", a.name)
	case a.name == "timeout_seconds" && field.IsZero():
		// An omitted value means the default. An explicit 0 could mean no timeout or an immediate timeout.
		return fmt.Errorf("%s must be 1 to %d, not 0", a.name, bound.ExecTimeout/time.Second)
	}
	return nil
}

// object decodes all arguments: an object, an object as JSON text, or nothing.
func object(raw json.RawMessage) (map[string]json.RawMessage, *Error) {
	values := map[string]json.RawMessage{}
	trimmed := bytes.TrimSpace(raw)
	var text string
	if len(trimmed) > 0 && trimmed[0] == '"' && json.Unmarshal(trimmed, &text) == nil {
		trimmed = bytes.TrimSpace([]byte(text))
	}
	if len(trimmed) == 0 || string(trimmed) == "null" {
		return values, nil
	}
	if err := json.Unmarshal(trimmed, &values); err != nil {
		return nil, Failf(CodeInvalid, "the arguments must be a JSON object")
	}
	return values, nil
}

// renameAliases replaces other names of arguments. If two names are for the same argument, it keeps the second name,
// which is then unknown.
func renameAliases(values map[string]json.RawMessage, args []argument) map[string]json.RawMessage {
	out := maps.Clone(values)
	for _, name := range slices.Sorted(maps.Keys(values)) {
		target, ok := aliases[strings.ToLower(name)]
		if !ok || slices.ContainsFunc(args, func(a argument) bool { return a.name == name }) {
			continue
		}
		_, taken := out[target]
		if !taken && slices.ContainsFunc(args, func(a argument) bool { return a.name == target }) {
			delete(out, name)
			out[target] = values[name]
		}
	}
	return out
}

func unknownArgument(name string, args []argument) string {
	names := make([]string, len(args))
	for i, a := range args {
		names[i] = a.name
	}
	return fmt.Sprintf("unknown argument %q, %s", sanitize.Clip(name), suggest.Hint(name, names))
}

// setArgument sets one field. Errors contain the argument's name.
func setArgument(field reflect.Value, name string, value json.RawMessage) error {
	if u, ok := field.Addr().Interface().(json.Unmarshaler); ok {
		if err := u.UnmarshalJSON(value); err != nil {
			return fmt.Errorf("%s: %v", name, err)
		}
		return nil
	}
	var v any
	if err := decodeNumber(value, &v); err != nil {
		return fmt.Errorf("%s: not valid JSON", name)
	}
	var want string
	var ok bool
	switch field.Kind() {
	case reflect.String:
		want, ok = "text", put(field.SetString)(scalarText(v))
	case reflect.Int64:
		want, ok = "a whole number", put(field.SetInt)(integer(v))
	case reflect.Bool:
		want, ok = "true or false", put(field.SetBool)(boolean(v))
	case reflect.Slice:
		var list []any
		want = "a list of strings"
		list, ok = listOf(v)
		texts := make([]string, len(list))
		for i, item := range list {
			text, isText := scalarText(item)
			if !isText {
				return wrongType(fmt.Sprintf("%s[%d]", name, i), "text", item)
			}
			texts[i] = text
		}
		field.Set(reflect.ValueOf(texts))
	default:
		panic("toolspec: input field of kind " + field.Kind().String()) // a bug in an input's type
	}
	if !ok {
		return wrongType(name, want, v)
	}
	return nil
}

// listOf accepts a list, or JSON text of a list, which some models send.
func listOf(v any) (list []any, ok bool) {
	if text, isText := v.(string); isText {
		if decodeNumber([]byte(text), &list) != nil {
			return nil, false
		}
		v = list
	}
	list, ok = v.([]any)
	return list, ok && list != nil
}

// put returns a function calling set if ok is true, and returns ok.
func put[T any](set func(T)) func(T, bool) bool {
	return func(v T, ok bool) bool {
		if ok {
			set(v)
		}
		return ok
	}
}

func wrongType(name, want string, got any) error {
	hint := ""
	_, isText := got.(string)
	_, isList := got.([]any)
	switch {
	case name == "cmd" && isText:
		hint = `; pass one line for the shell as command, or a list, for example ["ls", "-l"]`
	case want == "a list of strings" && isText:
		hint = `; for example ["a", "b"]`
	case name == "command" && isList:
		hint = "; pass a list of arguments as cmd"
	case want == "text":
		hint = "; write it as a JSON string"
	}
	return fmt.Errorf("%s must be %s, not %s%s", name, want, KindOf(got), hint)
}

func decodeNumber(b []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	err := dec.Decode(v)
	if _, end := dec.Token(); err == nil && end != io.EOF {
		return fmt.Errorf("more than one value")
	}
	return err
}

func scalarText(v any) (string, bool) {
	switch v := v.(type) {
	case string:
		return v, true
	case json.Number:
		return v.String(), true
	case bool:
		return strconv.FormatBool(v), true
	}
	return "", false
}

// integer accepts 30, 30.0, and "30".
func integer(v any) (int64, bool) {
	var text string
	switch v := v.(type) {
	case json.Number:
		text = v.String()
	case string:
		text = strings.TrimSpace(v)
	default:
		return 0, false
	}
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, true
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
		return 0, false
	}
	return int64(f), true
}

func boolean(v any) (b, ok bool) {
	switch v := v.(type) {
	case bool:
		return v, true
	case string:
		b, err := strconv.ParseBool(strings.ToLower(v))
		return b, err == nil && len(v) > 1
	}
	return false, false
}

// KindOf returns the name of a JSON value's type.
func KindOf(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return "text"
	case bool:
		return strconv.FormatBool(v)
	case json.Number:
		return "the number " + sanitize.Clip(v.String())
	case []any:
		return "a list"
	}
	return "an object"
}
