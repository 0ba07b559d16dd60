package mcpserver

import "github.com/workcell-dev/workcell/internal/yamlnode"

// ParsePolicy parses a YAML policy over DefaultPolicy. name is used only in errors. Unknown keys, values of the wrong
// type, negative or fractional limits, and malformed patterns are errors.
func ParsePolicy(name string, src []byte) (Policy, error) {
	p := DefaultPolicy()
	const single = "keep one of them"
	format := yamlnode.Format{Name: "the policy", Single: single, MaxBytes: 1 << 20, MaxDepth: 16, MaxValues: 50_000}
	d, root := format.Read(name, src)
	d.Zero = true // zero means no limit
	if root == nil || d.Decode(root, "the policy", &p) {
		d.AddBelow("", p.compile())
	}
	return p, d.Err()
}
