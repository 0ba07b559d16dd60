package yamlnode

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/suggest"
)

// maxProblems is the maximum number of reported problems per file.
const maxProblems = 50

// Decoder decodes the nodes of one file into Go values and collects all problems.
type Decoder struct {
	*Source
	First    int                                            // line of the file on which the YAML begins
	Of       bool                                           // messages use "key of what" instead of "what.key"
	Zero     bool                                           // allow 0 for numbers, except for pointers
	Removed  map[string]string                              // hints for keys of earlier versions, by path
	Without  []string                                       // keys to refuse although structs have them
	Hook     func(n *Node, name string, to any) (done bool) // decodes special values; may be nil
	At       map[string]*Node                               // values of structs and keys of maps, by path
	Bad      map[string]bool                                // paths of refused values
	Problems hint.Problems
	root     *Node
}

// NewDecoder returns a decoder for nodes of a file. line is the line on which the YAML begins.
func NewDecoder(file, text string, line int) *Decoder {
	source := &Source{file, strings.Split(text, "\n")}
	return &Decoder{Source: source, First: line, At: map[string]*Node{}, Bad: map[string]bool{}}
}

// Err returns all problems in file order as [hint.Problems], or nil.
func (d *Decoder) Err() error {
	if len(d.Problems) == 0 {
		return nil
	}
	d.Problems.Sort(d.File)
	return d.Problems
}

// Fail adds a problem with a node.
func (d *Decoder) Fail(n *Node, advice, format string, args ...any) {
	d.failAt(n.Line, n.Column, advice, format, args...)
}

// FailInside adds a problem with the text at an offset of a scalar.
func (d *Decoder) FailInside(n *Node, offset int, advice, format string, args ...any) {
	if len(d.Problems) > maxProblems { // finding a position in a long line takes time
		return
	}
	line, column := d.Place(n, offset)
	d.failAt(line, column, advice, format, args...)
}

func (d *Decoder) failAt(line, column int, advice, format string, args ...any) {
	message := fmt.Sprintf(format, args...)
	d.Add(&hint.Problem{File: d.File, Line: d.First - 1 + line, Column: column, Message: message, Hint: advice})
}

// Add adds a problem, unless too many have been reported.
func (d *Decoder) Add(p *hint.Problem) {
	switch {
	case len(d.Problems) < maxProblems:
		d.Problems = append(d.Problems, p)
	case len(d.Problems) == maxProblems:
		d.Problems = append(d.Problems, &hint.Problem{File: d.File, Message: "more problems; only the first are listed"})
	}
}

// AddBelow adds the problems of the value at a path with the positions of its fields. It skips fields refused before.
func (d *Decoder) AddBelow(path string, problems hint.Problems) {
next:
	for _, p := range problems {
		var at *Node
		for sub := d.join(path, p.Field); sub != ""; sub = sub[:max(strings.LastIndexAny(sub, ".["), 0)] {
			if d.Bad[sub] {
				continue next
			}
			at = cmp.Or(at, d.At[sub])
		}
		d.Fail(cmp.Or(at, d.root), p.Hint, "%s", p.Message)
	}
}

// Refuse adds a problem with the value at a path. It returns false.
func (d *Decoder) Refuse(n *Node, path, advice, format string, args ...any) bool {
	d.Bad[path] = true
	d.Fail(n, advice, format, args...)
	return false
}

// Decode decodes n into the value to which the pointer to leads. Messages contain the path. Decode collects all
// problems and returns false if it refused a value. Structs have the keys of their yaml or json tags. Maps of text
// accept numbers and booleans literally. A field of type *Node keeps the node, for values with expressions. The tag
// yamlnode:"short" marks the field of a struct for a scalar value, and yamlnode:"number" marks text with support for
// numbers.
func (d *Decoder) Decode(n *Node, path string, to any) bool {
	return d.decode(n, path, reflect.ValueOf(to).Elem(), d.Zero)
}

func (d *Decoder) decode(n *Node, path string, v reflect.Value, zero bool) bool {
	n = Follow(n)
	d.At[path] = n
	to := v.Addr().Interface()
	if d.Hook != nil && d.Hook(n, path, to) {
		return !d.Bad[path]
	}
	switch v.Kind() {
	case reflect.Pointer:
		if node, ok := to.(**Node); ok {
			*node = n
			return true
		}
		value := reflect.New(v.Type().Elem())
		ok := d.decode(n, path, value.Elem(), true)
		if ok || value.Elem().Kind() == reflect.Struct {
			v.Set(value)
		}
		return ok
	case reflect.Struct:
		if field, ok := shortForm(v); ok && n.Kind == Scalar {
			return d.decode(n, path, field, zero)
		}
		return d.object(n, path, v)
	case reflect.Map:
		return d.mapping(n, path, v)
	case reflect.Slice:
		if n.Kind != List {
			return d.Refuse(n, path, "", "%s must be a list, not %s", path, Kind(n))
		}
		ok, key, what := true, path, ""
		if d.Of {
			key, what, _ = strings.Cut(path, " of ")
			what = " of " + what
		}
		v.Set(reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content)))
		for i, item := range n.Content {
			ok = d.decode(item, fmt.Sprintf("%s[%d]%s", key, i, what), v.Index(i), zero) && ok
		}
		return ok
	}
	return d.scalar(n, path, v, zero)
}

// shortForm returns the field for a scalar value.
func shortForm(v reflect.Value) (field reflect.Value, ok bool) {
	for _, f := range reflect.VisibleFields(v.Type()) {
		if f.Tag.Get("yamlnode") == "short" {
			return v.FieldByIndex(f.Index), true
		}
	}
	return v, false
}

// object decodes a mapping into a struct.
func (d *Decoder) object(n *Node, path string, v reflect.Value) bool {
	fields, numbers, names := map[string]reflect.Value{}, map[string]bool{}, []string(nil)
	for _, f := range reflect.VisibleFields(v.Type()) {
		name, _, _ := strings.Cut(cmp.Or(f.Tag.Get("yaml"), f.Tag.Get("json")), ",")
		if name != "" && name != "-" && !slices.Contains(d.Without, name) {
			fields[name], names = v.FieldByIndex(f.Index), append(names, name)
			numbers[name] = f.Tag.Get("yamlnode") == "number"
		}
	}
	values, ok := d.Fields(n, path, names...)
	for _, name := range names {
		if value := values[name]; value != nil {
			if numbers[name] && Is(value, "!!int") {
				text := *value
				text.Tag, value = "!!str", &text
			}
			ok = d.decode(value, d.join(path, name), fields[name], d.Zero) && ok
		}
	}
	return ok
}

// Fields returns the values of the known keys in a mapping. It reports other keys, and known keys without a value.
func (d *Decoder) Fields(n *Node, path string, known ...string) (map[string]*Node, bool) {
	if n.Kind != Mapping {
		return nil, d.Refuse(n, path, "", "%s must be a mapping, not %s", path, Kind(n))
	}
	values := map[string]*Node{}
	for key, value := range Pairs(n) {
		switch sub := d.join(path, key.Value); {
		case key.Kind != Scalar || key.ShortTag() == "!!merge" || values[key.Value] != nil: // reported by check
		case !slices.Contains(known, key.Value):
			advice := cmp.Or(d.Removed[sub], suggest.Hint(key.Value, known))
			d.Fail(key, advice, "unknown key %q in %s", sanitize.Clip(key.Value), path)
		case IsNull(value):
			d.At[sub] = value
			d.Refuse(value, sub, "set a value or remove the key", "%s is empty", sub)
		default:
			values[key.Value] = value
		}
	}
	return values, true
}

// mapping decodes a mapping of names.
func (d *Decoder) mapping(n *Node, path string, v reflect.Value) bool {
	isText, what := v.Type().Elem().Kind() == reflect.String, "a mapping"
	if isText {
		what = "a mapping of names to text"
	}
	if n.Kind != Mapping {
		return d.Refuse(n, path, "", "%s must be %s, not %s", path, what, Kind(n))
	}
	v.Set(reflect.MakeMap(v.Type()))
	all := true
	for key, value := range Pairs(n) {
		if key.Kind != Scalar {
			continue // reported by check
		}
		sub, elem, ok := d.join(path, key.Value), reflect.New(v.Type().Elem()).Elem(), true
		switch {
		case !isText:
			ok = d.decode(value, sub, elem, d.Zero)
		case value.Kind != Scalar || IsNull(value):
			ok = d.Refuse(value, sub, `write "" for an empty value`, "%s must be text, not %s", sub, Kind(value))
		default:
			elem.SetString(value.Value)
		}
		if d.At[sub] = key; ok || elem.Kind() == reflect.Struct {
			v.SetMapIndex(reflect.ValueOf(key.Value), elem)
		}
		all = all && ok
	}
	return all
}

// scalar decodes text, a bool, a number, or a duration.
func (d *Decoder) scalar(n *Node, path string, v reflect.Value, zero bool) bool {
	must := func(advice, what string) bool {
		return d.Refuse(n, path, advice, "%s must be %s, not %s", path, what, Kind(n))
	}
	_, isDuration := v.Interface().(fmt.Stringer)
	switch kind := v.Kind(); {
	case kind == reflect.String:
		if !Is(n, "!!str") {
			return must(quoteHint(n), "text")
		}
		if v.SetString(n.Value); n.Value == "" {
			return d.Refuse(n, path, "set a value or remove the key", "%s is empty", path)
		}
		return true
	case kind == reflect.Bool:
		return Is(n, "!!bool") && n.Decode(v.Addr().Interface()) == nil || must("", "true or false")
	case isDuration:
		t, advice, ok := duration(n)
		if !ok {
			return must(advice, "a duration")
		}
		v.SetInt(int64(t))
	case !Is(n, "!!int", "!!float") || kind == reflect.Float64 && n.Decode(v.Addr().Interface()) != nil:
		return must("", map[bool]string{true: "a number", false: "a whole number"}[kind == reflect.Float64])
	case kind != reflect.Float64 && !Is(n, "!!int"):
		return must("", "a whole number")
	case n.Decode(v.Addr().Interface()) != nil:
		return d.Refuse(n, path, "", "%s: the number %s is out of range", path, sanitize.Clip(n.Value))
	}
	if v.IsZero() && !zero {
		return d.Refuse(n, path, "remove it to use the default", "%s is 0", path)
	}
	return true
}

// quoteHint returns a hint if YAML parsed text as a number or a boolean.
func quoteHint(n *Node) string {
	if n.Kind == Scalar && !IsNull(n) && len(n.Value) < 40 {
		return fmt.Sprintf("put it in quotes: %q", n.Value)
	}
	return ""
}

// join returns the path of a key. Names with spaces, for example "the file", are not part of paths.
func (d *Decoder) join(path, key string) string {
	key = sanitize.Clip(key)
	switch {
	case d.Of:
		return key + " of " + path
	case path == "" || key == "" || strings.Contains(path, " "):
		return key
	}
	return path + "." + key
}
