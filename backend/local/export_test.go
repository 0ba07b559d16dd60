//go:build linux

package local

// GroupPrefix begins the names of the control groups of a state directory's sandboxes.
func GroupPrefix(dir string) string { return (&driver{dirs: dirs{root: dir}}).groupPrefix() }
