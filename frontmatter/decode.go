package frontmatter

import (
	"fmt"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/internal/yamlnode"
)

// field is a key of a mapping and what to do with its value.
type field struct {
	name string
	set  func(n *yaml.Node, path string)
}

// decoder turns nodes into values. It refuses wrong types; whether a value can be is for Problems.
type decoder struct {
	*reporter
	at  map[string]*yaml.Node // where each path was set
	bad map[string]bool       // paths that were refused already
}

func (d *decoder) refuse(n *yaml.Node, path, hint, format string, args ...any) {
	d.bad[path] = true
	d.fail(n, hint, format, args...)
}

func (d *decoder) has(path string) bool { return d.at[path] != nil }

// object sets the fields of a mapping and names the closest known key for an unknown one.
func (d *decoder) object(n *yaml.Node, path string, fields []field) {
	if n.Kind != yaml.MappingNode {
		d.refuse(n, path, "", "%s must be a mapping, not %s", path, kind(n))
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], follow(n.Content[i+1])
		if key.Kind != yaml.ScalarNode || key.ShortTag() == "!!merge" {
			continue // refused for the whole file
		}
		at := slices.IndexFunc(fields, func(f field) bool { return f.name == key.Value })
		if at < 0 {
			d.unknown(key, path, fields)
			continue
		}
		sub := join(path, key.Value)
		d.at[sub] = value
		if value.Kind == yaml.ScalarNode && value.ShortTag() == "!!null" {
			d.refuse(value, sub, "set a value or remove the key", "%s is empty", sub)
			continue
		}
		fields[at].set(value, sub)
	}
}

func (d *decoder) unknown(key *yaml.Node, path string, fields []field) {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	d.fail(key, suggest.Hint(key.Value, names), "unknown key %q in %s", clip(key.Value), path)
}

func (d *decoder) text(p *string) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!str" {
			d.refuse(n, path, "", "%s must be text, not %s", path, kind(n))
			return
		}
		*p = n.Value
		if n.Value == "" {
			d.refuse(n, path, "set a value or remove the key", "%s is empty", path)
		}
	}
}

// loose is text that may look like a number, as a user id does.
func (d *decoder) loose(p *string) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!int" {
			*p = n.Value
			return
		}
		d.text(p)(n, path)
	}
}

func enum[T ~string](d *decoder, p *T) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		var s string
		d.text(&s)(n, path)
		*p = T(s)
	}
}

func (d *decoder) integer(p *int64) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" {
			d.refuse(n, path, "", "%s must be a whole number, not %s", path, kind(n))
			return
		}
		if err := n.Decode(p); err != nil {
			d.refuse(n, path, "", "%s: the number %s is out of range", path, clip(n.Value))
			return
		}
		if *p == 0 {
			d.refuse(n, path, "remove it to use the default", "%s is 0", path)
		}
	}
}

func (d *decoder) duration(p *Duration) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		v, hint, ok := yamlnode.Duration(n)
		switch {
		case !ok:
			d.refuse(n, path, hint, "%s must be a duration, not %s", path, kind(n))
		case v == 0:
			d.refuse(n, path, "remove it to use the default", "%s is 0", path)
		}
		*p = Duration(v)
	}
}

// boolean sets a pointer, so that a file's false differs from nothing said.
// boolean reads a bool into p, a *bool, or a **bool to which no is not the same as nothing.
func (d *decoder) boolean(p any) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" || n.Decode(p) != nil {
			d.refuse(n, path, "", "%s must be true or false, not %s", path, kind(n))
		}
	}
}

func (d *decoder) list(p *[]string) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.SequenceNode {
			d.refuse(n, path, "", "%s must be a list, not %s", path, kind(n))
			return
		}
		*p = make([]string, len(n.Content))
		for i, c := range n.Content {
			c, sub := follow(c), fmt.Sprintf("%s[%d]", path, i)
			d.at[sub] = c
			d.text(&(*p)[i])(c, sub)
		}
	}
}

// env takes values literally: a number or a bool stands for its own text.
func (d *decoder) env(p *map[string]string) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.MappingNode {
			d.refuse(n, path, "", "%s must be a mapping of names to text, not %s", path, kind(n))
			return
		}
		*p = make(map[string]string, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], follow(n.Content[i+1])
			sub := join(path, key.Value)
			d.at[sub] = key
			if value.Kind != yaml.ScalarNode || value.ShortTag() == "!!null" {
				d.refuse(value, sub, `write "" for an empty value`, "%s must be text, not %s", sub, kind(value))
				continue
			}
			(*p)[key.Value] = value.Value
		}
	}
}

// ports reads names of ports.
func (d *decoder) ports(p *map[string]int64) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.MappingNode {
			d.refuse(n, path, "write {web: 8080}", "%s must be a mapping of names to ports, not %s", path, kind(n))
			return
		}
		*p = make(map[string]int64, len(n.Content)/2)
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], follow(n.Content[i+1])
			sub, port := join(path, key.Value), int64(0)
			d.at[sub] = key
			if d.integer(&port)(value, sub); !d.bad[sub] {
				(*p)[key.Value] = port
			}
		}
	}
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

// sandbox reads the value of `sandbox:`, or of the config of an entry of `use:`.
func (d *decoder) sandbox(n *yaml.Node, path string) *Sandbox {
	s := &Sandbox{}
	if !d.literal(n) {
		return s
	}
	if n.Kind == yaml.ScalarNode {
		d.short(n, path, s)
	} else {
		d.object(n, path, d.sandboxFields(s))
		d.conflicts(path)
	}
	d.problems(n, path, *s)
	return s
}

// problems reports what is wrong with the values of s, each where it is set, or at n.
func (d *decoder) problems(n *yaml.Node, path string, s Sandbox) {
	for _, p := range s.Problems() {
		at, full := n, join(path, p.Field)
		if d.bad[full] {
			continue
		}
		for sub := full; sub != path && sub != ""; sub = sub[:max(strings.LastIndexAny(sub, ".["), 0)] {
			if d.has(sub) {
				at = d.at[sub]
				break
			}
		}
		d.fail(at, p.Hint, "%s", p.Message)
	}
}

// RunSandbox is the value of `sandbox:` in a workflow's file: what the sandboxes of its runs are like where no agent asks
// for something else. It has the fields of an agent's, without mode, session and those of compute mode.
type RunSandbox struct {
	Sandbox
	At map[string]*yaml.Node // the values by key: those of Sandbox, and of the keys that the caller reads itself
}

// DecodeRun reads the value n of `sandbox:` in a workflow's file; own are further keys, which the caller reads itself. The
// problems, if any, are about file.
func DecodeRun(file string, n *yaml.Node, own ...string) (RunSandbox, Errors) {
	d := (&reporter{file: file, line: 1}).decoder()
	s := RunSandbox{Sandbox: Sandbox{Mode: ModeCode}, At: map[string]*yaml.Node{}}
	fields := d.sharedFields(&s.Sandbox, nil)
	for _, key := range own {
		fields = append(fields, field{key, func(*yaml.Node, string) {}})
	}
	d.object(n, "sandbox", fields)
	d.problems(n, "sandbox", s.Sandbox)
	for _, f := range fields {
		if at := join("sandbox", f.name); d.has(at) && !d.bad[at] {
			s.At[f.name] = d.at[at]
		}
	}
	return s, d.errs
}

// short reads `sandbox: python`.
func (d *decoder) short(n *yaml.Node, path string, s *Sandbox) {
	switch n.ShortTag() {
	case "!!null":
		d.fail(n, "write `sandbox: python`, or remove the key", "`%s:` is empty", path)
	case "!!str":
		s.Runtime = Runtime(n.Value)
		d.at[path+".runtime"] = n
		switch n.Value {
		case "":
			d.fail(n, "write `sandbox: python`, or remove the key", "`%s:` is empty", path)
		case string(ModeCompute), string(ModeCode), string(ModeScript), string(ModeExecutor):
			d.refuse(n, path+".runtime", fmt.Sprintf("write `sandbox: {mode: %s, runtime: python}`", n.Value),
				"the short form takes a runtime, but %q is a mode", n.Value)
		}
	default:
		d.fail(n, "write `sandbox: python`, or remove the key to have none", "`%s:` must be a runtime or a mapping, not %s", path, kind(n))
	}
}

// sandboxFields returns the fields of an agent's sandbox.
func (d *decoder) sandboxFields(s *Sandbox) []field {
	return slices.Concat([]field{{"mode", enum(d, &s.Mode)}}, d.sharedFields(s, s.Limits.older()), []field{
		{"session", d.text(&s.Session)},
		{"keep", d.text(&s.Keep)},
		{"outputs", d.list(&s.Outputs)},
		{"ports", d.ports(&s.Ports)},
		{"snapshots", d.boolean(&s.Snapshots)},
		{"host_tools", func(n *yaml.Node, path string) { s.HostTools = d.hostTools(n, path) }},
		{"executor", d.executor(&s.Executor)},
		{"command", d.shortExecutor(s, func(x *Executor) func(*yaml.Node, string) { return d.text(&x.Command) })},
		{"arguments", d.shortExecutor(s, func(x *Executor) func(*yaml.Node, string) { return d.env(&x.Args) })},
		{"timeout_seconds", d.integer(&s.TimeoutSeconds)},
		{"max_stdout_bytes", d.integer(&s.MaxStdoutBytes)},
		{"allow_network", d.boolean(&s.AllowNetwork)},
	})
}

// setup reads `setup:`.
func (d *decoder) setup(p **Setup) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		s := &Setup{}
		d.object(n, path, []field{{"run", d.list(&s.Run)}, {"network", func(n *yaml.Node, path string) {
			d.object(n, path, []field{{"allow", d.list(&s.Network.Allow)}, {"deny", d.list(&s.Network.Deny)}})
		}}})
		*p = s
	}
}

// sharedFields returns the fields that agents and workflows have, with more limits.
func (d *decoder) sharedFields(s *Sandbox, limits []limitField) []field {
	return []field{
		{"runtime", enum(d, &s.Runtime)},
		{"image", d.text(&s.Image)},
		{"yield_ms", d.integer(&s.YieldMS)},
		{"user", d.loose(&s.User)},
		{"root", enum(d, &s.Root)},
		{"env", d.env(&s.Env)},
		{"limits", func(n *yaml.Node, path string) {
			var fields []field
			for _, f := range s.Limits.fields() {
				fields = append(fields, field{f.name, d.integer(f.value)})
			}
			for _, t := range s.Limits.timeouts() {
				fields = append(fields, field{t.name, d.duration(t.value)})
			}
			for _, f := range limits {
				fields = append(fields, field{f.name, d.integer(f.value)})
			}
			d.object(n, path, fields)
		}},
		{"network", func(n *yaml.Node, path string) {
			d.object(n, path, []field{
				{"enabled", d.boolean(&s.Network.Enabled)}, {"allow", d.list(&s.Network.Allow)}, {"deny", d.list(&s.Network.Deny)},
			})
		}},
		{"pip_packages", d.list(&s.PipPackages)},
		{"npm_packages", d.list(&s.NpmPackages)},
		{"setup", d.setup(&s.Setup)},
		{"cache", d.list(&s.Cache)},
	}
}

// conflicts refuses the old and the new spelling side by side.
func (d *decoder) conflicts(path string) {
	for _, pair := range [][2]string{
		{"allow_network", "network.enabled"},
		{"timeout_seconds", "limits.exec_timeout"},
		{"timeout_seconds", "limits.exec_timeout_seconds"},
		{"limits.timeout_seconds", "limits.idle_timeout"},
		{"limits.exec_timeout_seconds", "limits.exec_timeout"},
		{"command", "executor"},
		{"arguments", "executor"},
	} {
		if old := join(path, pair[0]); d.has(old) && d.has(join(path, pair[1])) {
			d.fail(d.at[old], "remove "+pair[0], "%s and %s set the same value", pair[0], pair[1])
		}
	}
}

// literal refuses anchors and aliases: the block is moved to another place for Genkit, where they would mean nothing.
func (d *decoder) literal(n *yaml.Node) bool {
	ok := true
	if n.Kind == yaml.AliasNode {
		d.fail(n, "write out the value", "aliases are not supported here")
		return false
	}
	if n.Anchor != "" {
		d.fail(n, "remove &"+clip(n.Anchor), "anchors are not supported here")
		ok = false
	}
	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 && c.ShortTag() == "!!merge" {
			d.fail(c, "write out the values", "merge keys are not supported here")
			ok = false
			continue
		}
		ok = d.literal(c) && ok
	}
	return ok
}
