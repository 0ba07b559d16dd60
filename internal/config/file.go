package config

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
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

// read reads the file at path into the settings. The error has every problem with its place.
func read(table []*setting, path string) error {
	src, err := yamlnode.ReadFile(path, maxBytes)
	if err != nil {
		return err
	}
	return parse(table, path, src)
}

// reader reads a file into settings.
type reader struct {
	shown    string // path of the file in messages
	table    []*setting
	problems hint.Problems
}

// parse reads the text of a file.
func parse(table []*setting, shown string, src []byte) error {
	r := &reader{shown: shown, table: table}
	r.document(src)
	if r.problems == nil {
		return nil
	}
	for _, p := range r.problems {
		p.File = shown
	}
	r.problems.Sort(shown)
	return r.problems
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

func (r *reader) fail(n *yaml.Node, advice, format string, args ...any) {
	r.problems = append(r.problems, &hint.Problem{Line: n.Line, Column: n.Column, Message: fmt.Sprintf(format, args...), Hint: advice})
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
		r.fail(n, "write `key: value` lines", "%s must be a mapping, not %s", what, yamlnode.Kind(n))
		return
	}
	for key, value := range yamlnode.Pairs(n) {
		path := prefix + key.Value
		at := slices.IndexFunc(r.table, func(s *setting) bool { return s.key == path })
		switch {
		case at < 0 && len(below(r.table, path+".")) > 0 && !strings.Contains(key.Value, "."):
			r.mapping(value, path+".")
		case at < 0 || strings.Contains(key.Value, "."):
			r.fail(key, cmp.Or(removed[path], suggest.Hint(key.Value, below(r.table, prefix))), "unknown key %q in %s", sanitize.Clip(key.Value), what)
		case yamlnode.IsNull(value):
			r.fail(value, "set a value or remove the key", "%s is empty", path)
		default:
			r.set(r.table[at], value)
		}
	}
}

// set reads the value of a setting.
func (r *reader) set(s *setting, n *yaml.Node) {
	want, ok := s.decode(n)
	if !ok {
		hint := ""
		if _, isTime := s.to.(*time.Duration); isTime {
			_, hint, _ = yamlnode.Duration(n)
		}
		r.fail(n, hint, "%s must be %s, not %s", s.key, want, yamlnode.Kind(n))
		return
	}
	if s.check != nil {
		if problem, hint := s.check(); problem != "" {
			r.fail(n, hint, "%s", problem)
			return
		}
	}
	s.node, s.origin = n, r.shown
}

// decode sets the value to that of n. It reports false if n has another type than want.
func (s *setting) decode(n *yaml.Node) (want string, ok bool) {
	switch to := s.to.(type) {
	case *string:
		*to, ok = scalar(n, "!!str")
		return "text", ok && *to != ""
	case *bool:
		_, ok = scalar(n, "!!bool")
		return "true or false", ok && n.Decode(to) == nil
	case *int64:
		_, ok = scalar(n, "!!int")
		return "a whole number", ok && n.Decode(to) == nil
	case *time.Duration:
		text, isText := scalar(n, "!!str")
		d, err := time.ParseDuration(text)
		*to = d
		return "a time such as 36h or 90m", isText && err == nil
	case *[]string:
		want, ok, *to = "a list of text", n.Kind == yaml.SequenceNode, []string{}
		for item := range yamlnode.Items(n) {
			text, isText := scalar(item, "!!str")
			ok, *to = ok && isText && text != "", append(*to, text)
		}
	case *pairs:
		tag := "!!str"
		if want = "a mapping of text to text"; s.counts {
			want, tag = "a mapping of text to whole numbers", "!!int"
		}
		ok, *to = n.Kind == yaml.MappingNode, pairs{}
		if !ok {
			return want, false
		}
		for key, item := range yamlnode.Pairs(n) {
			from, okFrom := scalar(key, "!!str")
			value, okTo := scalar(item, tag)
			ok = ok && okFrom && okTo && from != "" && value != "" && !strings.Contains(from, "=")
			*to = append(*to, from+"="+value)
		}
	}
	return want, ok
}

// scalar returns the text of a value with a tag.
func scalar(n *yaml.Node, tag string) (text string, ok bool) {
	return n.Value, n.Kind == yaml.ScalarNode && n.ShortTag() == tag
}
