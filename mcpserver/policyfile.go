package mcpserver

import "github.com/workcell-dev/workcell/internal/yamlnode"

// ParsePolicy reads a policy in YAML over DefaultPolicy; name is used in errors only. Unknown keys, values of another
// type, limits that are negative or not whole numbers, and malformed patterns are errors.
func ParsePolicy(name string, src []byte) (Policy, error) {
	p := DefaultPolicy()
	const single = "keep one of them"
	format := yamlnode.Format{Name: "the policy", Single: single, MaxBytes: 1 << 20, MaxDepth: 16, MaxValues: 50_000}
	d, root := format.Read(name, src)
	d.Zero = true // no bound
	if root == nil || d.Decode(root, "the policy", &p) {
		d.AddBelow("", p.compile())
	}
	return p, d.Err()
}
