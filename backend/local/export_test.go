//go:build linux

package local

// GroupPrefix begins the names of the control groups of a state directory's sandboxes.
func GroupPrefix(dir string) string { return (&Backend{dirs: dirs{root: dir}}).groupPrefix() }
