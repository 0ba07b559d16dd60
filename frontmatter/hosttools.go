package frontmatter

import (
	"fmt"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/workcell-dev/workcell/internal/toolrule"
)

// HostTools is the value of `host_tools:`, the tools of the host that code inside the sandbox may call.
type HostTools = toolrule.Rules

// HostTool is a rule of HostTools, which lets tools be called.
type HostTool = toolrule.Rule

// hostTools reads `host_tools:`.
func (d *decoder) hostTools(n *yaml.Node, path string) *HostTools {
	h := &HostTools{}
	d.object(n, path, []field{
		{"allow", func(n *yaml.Node, path string) { h.Allow = d.hostToolRules(n, path) }},
		{"limits", func(n *yaml.Node, path string) {
			var fields []field
			for _, b := range h.Limits.Bounds() {
				fields = append(fields, field{b.Name, d.integer(b.Value)})
			}
			d.object(n, path, fields)
		}},
		{"index", d.text(&h.Index)},
	})
	if d.bad[path] { // one problem is enough
		d.bad[join(path, "allow")] = true
	}
	return h
}

// hostToolRules reads rules: "server.tool", or a mapping.
func (d *decoder) hostToolRules(n *yaml.Node, path string) []HostTool {
	if n.Kind != yaml.SequenceNode {
		d.refuse(n, path, "for example allow: [orders.lookup]", "%s must be a list, not %s", path, kind(n))
		return nil
	}
	rules := make([]HostTool, len(n.Content))
	for i, c := range n.Content {
		r, sub := &rules[i], fmt.Sprintf("%s[%d]", path, i)
		d.at[sub] = c
		if c.Kind != yaml.MappingNode {
			d.text(&r.Tool)(c, sub)
			d.bad[sub+".tool"] = d.bad[sub]
			continue
		}
		d.object(c, sub, []field{
			{"tool", d.text(&r.Tool)},
			{"when", d.text(&r.When)},
			{"ask", d.condition(&r.Ask)},
			{"max_calls", d.integer(&r.MaxCalls)},
		})
	}
	return rules
}

// condition is an expression, or true.
func (d *decoder) condition(p *string) func(*yaml.Node, string) {
	return func(n *yaml.Node, path string) {
		if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!bool" {
			d.text(p)(n, path)
			return
		}
		var yes bool
		if n.Decode(&yes) != nil || !yes {
			d.refuse(n, path, "remove it", "%s must be true or a condition, not %s", path, kind(n))
			return
		}
		*p = "true"
	}
}

// SandboxProblem makes an error about a field below `sandbox`, "host_tools.allow[2].when".
func (d *Document) SandboxProblem(field, hint, format string, args ...any) *Error {
	path := []any{"sandbox"}
	for _, part := range strings.Split(field, ".") {
		name, index, list := strings.Cut(strings.TrimSuffix(part, "]"), "[")
		path = append(path, name)
		if i, err := strconv.Atoi(index); list && err == nil {
			path = append(path, i)
		}
	}
	return d.Problem(path, hint, format, args...)
}
