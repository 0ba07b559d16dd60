package frontmatter

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// decoder decodes sandboxes. It reports wrong types. Problems reports invalid values.
type decoder struct{ *yamlnode.Decoder }

// read parses the YAML of frontmatter beginning on the specified line. The limits are far above real frontmatter. They
// exist because Genkit's parser takes quadratic time in the number of keys and fails on some documents without an
// error.
func read(name, text string, line int) (decoder, *yamlnode.Node) {
	d, root := yamlnode.Format{
		Name: "the frontmatter", Single: "remove lines that begin with --- or ... from the frontmatter", FirstLine: line,
		MaxBytes: MaxFileBytes, MaxDepth: 64, MaxValues: 5_000, MergeKeys: true,
	}.Read(name, []byte(text))
	d.Hook = decoder{d}.condition
	return decoder{d}, root
}

// written is a sandbox as agent files may write it, including short forms.
type written struct {
	Sandbox
	Command   string            `yaml:"command"`
	Arguments map[string]string `yaml:"arguments"`
}

// sandbox decodes the value of `sandbox:`, or the config of an entry in `use:`.
func (d decoder) sandbox(n *yamlnode.Node, path string) *Sandbox {
	var w written
	s := &w.Sandbox
	switch d.At[path] = n; {
	case !d.literal(n):
		return s
	case n.Kind == yamlnode.Scalar:
		d.short(n, path, s)
	default:
		d.Decode(n, path, &w)
		d.conflicts(path)
	}
	if w.Command != "" || w.Arguments != nil { // short form for mode executor
		s.Executor = cmp.Or(s.Executor, &Executor{})
		s.Mode = cmp.Or(s.Mode, ModeExecutor)
		s.Executor.Command, s.Executor.Args = cmp.Or(w.Command, s.Executor.Command), w.Arguments
	}
	d.AddBelow(path, s.Problems())
	return s
}

func (d decoder) has(path string) bool { return d.At[path] != nil }

// condition decodes `ask:` of a host tool, which may be true instead of a condition.
func (d decoder) condition(n *yamlnode.Node, path string, to any) bool {
	text, ok := to.(*string)
	if !ok || !strings.HasSuffix(path, ".ask") || !yamlnode.Is(n, "!!bool") {
		return false
	}
	var yes bool
	if *text = "true"; n.Decode(&yes) != nil || !yes {
		d.Refuse(n, path, "remove it", "%s must be true or a condition, not %s", path, yamlnode.Kind(n))
	}
	return true
}

// short decodes a scalar, for example `sandbox: python`.
func (d decoder) short(n *yamlnode.Node, path string, s *Sandbox) {
	switch tag := n.ShortTag(); {
	case tag == "!!null" || tag == "!!str" && n.Value == "":
		d.Fail(n, "write `sandbox: python`, or remove the key", "`%s:` is empty", path)
	case tag == "!!str":
		s.Runtime = Runtime(n.Value)
		d.At[path+".runtime"] = n
		switch n.Value {
		case string(ModeCompute), string(ModeCode), string(ModeScript), string(ModeExecutor):
			d.Refuse(n, path+".runtime", fmt.Sprintf("write `sandbox: {mode: %s, runtime: python}`", n.Value),
				"the short form takes a runtime, but %q is a mode", n.Value)
		}
	default:
		const format = "`%s:` must be a runtime or a mapping, not %s"
		d.Fail(n, "write `sandbox: python`, or remove the key to have none", format, path, yamlnode.Kind(n))
	}
}

// conflicts reports keys set in both the old and the new spelling.
func (d decoder) conflicts(path string) {
	for _, pair := range [][2]string{
		{"allow_network", "network.enabled"},
		{"timeout_seconds", "limits.exec_timeout"},
		{"timeout_seconds", "limits.exec_timeout_seconds"},
		{"limits.timeout_seconds", "limits.idle_timeout"},
		{"limits.exec_timeout_seconds", "limits.exec_timeout"},
		{"command", "executor"},
		{"arguments", "executor"},
	} {
		if old := path + "." + pair[0]; d.has(old) && d.has(path+"."+pair[1]) {
			d.Fail(d.At[old], "remove "+pair[0], "%s and %s set the same value", pair[0], pair[1])
		}
	}
}

// merges reports the merge keys of a mapping with known keys. Genkit would use the merged values without checks.
func (d decoder) merges(n *yamlnode.Node) (found bool) {
	for key := range yamlnode.Pairs(n) {
		if key.ShortTag() == "!!merge" {
			d.Fail(key, "write out the values", "merge keys are not supported here")
			found = true
		}
	}
	return found
}

// literal reports anchors and aliases. The block is moved within the file for Genkit, so aliases would lose their
// meaning.
func (d decoder) literal(n *yamlnode.Node) bool {
	if yamlnode.Follow(n) != n {
		d.Fail(n, "write out the value", "aliases are not supported here")
		return false
	}
	ok := !d.merges(n)
	if n.Anchor != "" {
		d.Fail(n, "remove &"+sanitize.Clip(n.Anchor), "anchors are not supported here")
		ok = false
	}
	for _, c := range n.Content {
		ok = d.literal(c) && ok
	}
	return ok
}
