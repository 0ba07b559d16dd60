package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// maxBytes bounds a file.
const maxBytes = 64 << 10

// removed has what to use instead of keys that earlier versions had.
var removed = map[string]string{
	keyKubernetes + "claims":               "it was removed; use `pool: {IMAGE: N}`, see docs/pool.md",
	keyKubernetes + "trust_network_policy": "use kubernetes.network_policy: enforced, see docs/kubernetes.md#networks",
}

// file is a file that was read. The nil file sets nothing.
type file struct {
	shown   string // its path in messages
	entries map[string]entry
}

// entry is a value and where it stands.
type entry struct {
	value        any
	line, column int
}

func (f *file) get(key string) (entry, bool) {
	if f == nil {
		return entry{}, false
	}
	e, ok := f.entries[key]
	return e, ok
}

// place returns file:line:column.
func (f *file) place(e entry) string { return fmt.Sprintf("%s:%d:%d", f.shown, e.line, e.column) }

// read reads the file at path, which messages call shown.
func read(table []setting, path, shown string) (*file, error) {
	src, err := yamlnode.ReadFile(path, maxBytes)
	if err != nil {
		return nil, err
	}
	return parse(table, shown, src)
}

// reader collects what a file sets and what is wrong with it.
type reader struct {
	*file
	table    []setting
	problems []*yamlnode.Problem
}

// parse reads the text of a file. The error is every problem with its place.
func parse(table []setting, shown string, src []byte) (*file, error) {
	r := &reader{file: &file{shown: shown, entries: map[string]entry{}}, table: table}
	r.document(src)
	if len(r.problems) == 0 {
		return r.file, nil
	}
	slices.SortStableFunc(r.problems, func(a, b *yamlnode.Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	errs := make([]error, len(r.problems))
	for i, p := range r.problems {
		p.File = shown
		errs[i] = p
	}
	return nil, errors.Join(errs...)
}

func (r *reader) document(src []byte) {
	format := yamlnode.Format{Name: "the file", Single: "keep one of them", FirstLine: 1, MaxDepth: 8, MaxValues: 5_000}
	text, problem := yamlnode.Text(src, maxBytes)
	var root *yaml.Node
	if problem == nil {
		root, problem = format.Parse(text)
	}
	switch {
	case problem != nil:
		r.problems = append(r.problems, problem)
	case root != nil && format.Check(root, r.fail):
		r.mapping(root, "")
	}
}

func (r *reader) fail(n *yaml.Node, hint, format string, args ...any) {
	r.problems = append(r.problems, &yamlnode.Problem{Line: n.Line, Column: n.Column, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// mapping reads the keys below prefix, which is empty or ends in a dot.
func (r *reader) mapping(n *yaml.Node, prefix string) {
	if yamlnode.IsNull(n) && prefix == "" {
		return
	}
	what := strings.TrimSuffix(prefix, ".")
	if what == "" {
		what = "the file"
	}
	if n.Kind != yaml.MappingNode {
		r.fail(n, "write `key: value` lines", "%s must be a mapping, it is %s", what, yamlnode.Kind(n))
		return
	}
	for key, value := range yamlnode.Pairs(n) {
		path := prefix + key.Value
		at := slices.IndexFunc(r.table, func(s setting) bool { return s.key == path })
		switch {
		case at < 0 && len(below(r.table, path+".")) > 0 && !strings.Contains(key.Value, "."):
			r.mapping(value, path+".")
		case at < 0 || strings.Contains(key.Value, "."):
			r.fail(key, cmp.Or(removed[path], suggest.Hint(key.Value, below(r.table, prefix))), "unknown key %q in %s", yamlnode.Clip(key.Value), what)
		case yamlnode.IsNull(value):
			r.fail(value, "give a value or remove the key", "%s is empty", path)
		default:
			r.set(r.table[at], value)
		}
	}
}

// set reads the value of a setting.
func (r *reader) set(s setting, n *yaml.Node) {
	value, want := decode(s, n)
	if value == nil {
		hint := ""
		if _, isTime := s.fallback.(time.Duration); isTime {
			_, hint, _ = yamlnode.Duration(n)
		}
		r.fail(n, hint, "%s must be %s, it is %s", s.key, want, yamlnode.Kind(n))
		return
	}
	if s.check != nil {
		if problem, hint := s.check(value); problem != "" {
			r.fail(n, hint, "%s", problem)
			return
		}
	}
	r.entries[s.key] = entry{value, n.Line, n.Column}
}

// decode returns the value of n in the type of a setting; nil when it is none, and what it would have to be.
func decode(s setting, n *yaml.Node) (value any, want string) {
	text, isText := scalar(n, "!!str")
	switch s.fallback.(type) {
	case string:
		want = "text"
		if isText && text != "" {
			return text, want
		}
	case bool:
		var b bool
		want = "true or false"
		if _, ok := scalar(n, "!!bool"); ok && n.Decode(&b) == nil {
			return b, want
		}
	case int64:
		var i int64
		want = "a whole number"
		if _, ok := scalar(n, "!!int"); ok && n.Decode(&i) == nil {
			return i, want
		}
	case time.Duration:
		want = "a time such as 36h or 90m"
		if d, err := time.ParseDuration(text); isText && err == nil {
			return d, want
		}
	case []string:
		want = "a list of text"
		if n.Kind != yaml.SequenceNode {
			return nil, want
		}
		list := []string{}
		for item := range yamlnode.Items(n) {
			text, ok := scalar(item, "!!str")
			if !ok || text == "" {
				return nil, want
			}
			list = append(list, text)
		}
		return list, want
	case pairs:
		want = "a mapping of text to text"
		tag := "!!str"
		if s.counts {
			want, tag = "a mapping of text to whole numbers", "!!int"
		}
		if n.Kind != yaml.MappingNode {
			return nil, want
		}
		list := pairs{}
		for key, item := range yamlnode.Pairs(n) {
			from, okFrom := scalar(key, "!!str")
			to, okTo := scalar(item, tag)
			if !okFrom || !okTo || from == "" || to == "" || strings.Contains(from, "=") {
				return nil, want
			}
			list = append(list, from+"="+to)
		}
		return list, want
	}
	return nil, want
}

// scalar returns the text of a value with a tag.
func scalar(n *yaml.Node, tag string) (text string, ok bool) {
	return n.Value, n.Kind == yaml.ScalarNode && n.ShortTag() == tag
}
