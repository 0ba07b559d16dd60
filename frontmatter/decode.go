package frontmatter

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// decoder decodes sandboxes. It reports wrong types. Problems reports invalid values.
type decoder struct{ *yamlnode.Decoder }

func newDecoder(d *yamlnode.Decoder) decoder {
	d.Hook = decoder{d}.special
	return decoder{d}
}

// read parses the YAML of frontmatter that begins on the specified line. The limits are far above real frontmatter.
// They exist because Genkit's parser takes quadratic time in the number of keys and fails on some documents without an
// error.
func read(name, text string, line int) (decoder, *yamlnode.Node) {
	d, root := yamlnode.Format{
		Name: "the frontmatter", Single: "remove lines that begin with --- or ... from the frontmatter", FirstLine: line,
		MaxBytes: MaxFileBytes, MaxDepth: 64, MaxValues: 5_000, MergeKeys: true,
	}.Read(name, []byte(text))
	return newDecoder(d), root
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
		if s.Executor == nil {
			s.Executor = &Executor{}
		}
		s.Mode = cmp.Or(s.Mode, ModeExecutor)
		s.Executor.Command, s.Executor.Args = cmp.Or(w.Command, s.Executor.Command), w.Arguments
	}
	d.AddBelow(path, s.Problems())
	return s
}

func (d decoder) has(path string) bool { return d.At[path] != nil }

// special decodes types that have a short form.
func (d decoder) special(n *yamlnode.Node, path string, to any) bool {
	switch to := to.(type) {
	case *Executor: // a scalar is the command
		if n.Kind == yamlnode.Scalar {
			d.Decode(n, path, &to.Command)
			return true
		}
	case *rules.ServiceUse: // a name alone adds no rules
		if n.Kind == yamlnode.Scalar {
			d.Decode(n, path, &to.Name)
			return true
		}
	case *HostTool: // "server.tool"
		if n.Kind == yamlnode.Scalar {
			d.Decode(n, path, &to.Tool)
			return true
		}
	case *string:
		switch {
		case strings.HasSuffix(path, ".user") && yamlnode.Is(n, "!!int"):
			*to = n.Value
			return true
		case strings.HasSuffix(path, ".ask") && yamlnode.Is(n, "!!bool"):
			var yes bool
			if *to = "true"; n.Decode(&yes) != nil || !yes {
				d.Refuse(n, path, "remove it", "%s must be true or a condition, not %s", path, yamlnode.Kind(n))
			}
			return true
		}
	}
	return false
}

// RunSandbox is the value of `sandbox:` in a workflow file. Agents can override it for the run's sandboxes. It has the
// fields of an agent's sandbox, except mode, session, and the fields of compute mode.
type RunSandbox struct {
	Sandbox
	Retention *Duration                 `yaml:"retention"`
	Workspace string                    `yaml:"workspace"`
	At        map[string]*yamlnode.Node `yaml:"-"` // value nodes by path, for example "sandbox.user"
}

// DecodeRun decodes the value n of `sandbox:` in a workflow file and returns its problems.
func DecodeRun(file string, n *yamlnode.Node) (RunSandbox, Errors) {
	d := newDecoder(yamlnode.NewDecoder(file, "", 1))
	d.Without = []string{
		"mode", "session", "keep", "outputs", "ports", "snapshots", "host_tools", "executor",
		"timeout_seconds", "exec_timeout_seconds", "max_stdout_bytes", "allow_network",
	}
	s := RunSandbox{Sandbox: Sandbox{Mode: ModeCode}, At: d.At}
	d.Decode(n, "sandbox", &s)
	d.AddBelow("sandbox", s.Problems())
	return s, d.Problems
}

// short decodes a scalar, for example `sandbox: python`.
func (d decoder) short(n *yamlnode.Node, path string, s *Sandbox) {
	switch n.ShortTag() {
	case "!!null":
		d.Fail(n, "write `sandbox: python`, or remove the key", "`%s:` is empty", path)
	case "!!str":
		s.Runtime = Runtime(n.Value)
		d.At[path+".runtime"] = n
		switch n.Value {
		case "":
			d.Fail(n, "write `sandbox: python`, or remove the key", "`%s:` is empty", path)
		case string(ModeCompute), string(ModeCode), string(ModeScript), string(ModeExecutor):
			d.Refuse(n, path+".runtime", fmt.Sprintf("write `sandbox: {mode: %s, runtime: python}`", n.Value),
				"the short form takes a runtime, but %q is a mode", n.Value)
		}
	default:
		const format = "`%s:` must be a runtime or a mapping, not %s"
		d.Fail(n, "write `sandbox: python`, or remove the key to have none", format, path, yamlnode.Kind(n))
	}
}

// conflicts reports keys that are set in both the old and the new spelling.
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

// literal reports anchors and aliases. The block is moved within the file for Genkit, so aliases would lose their
// meaning.
func (d decoder) literal(n *yamlnode.Node) bool {
	ok := true
	if yamlnode.Follow(n) != n {
		d.Fail(n, "write out the value", "aliases are not supported here")
		return false
	}
	if n.Anchor != "" {
		d.Fail(n, "remove &"+sanitize.Clip(n.Anchor), "anchors are not supported here")
		ok = false
	}
	for i, c := range n.Content {
		if n.Kind == yamlnode.Mapping && i%2 == 0 && c.ShortTag() == "!!merge" {
			d.Fail(c, "write out the values", "merge keys are not supported here")
			ok = false
			continue
		}
		ok = d.literal(c) && ok
	}
	return ok
}
