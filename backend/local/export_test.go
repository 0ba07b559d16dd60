//go:build linux

package local

// GroupPrefix returns the prefix of the control group names of a state directory.
func GroupPrefix(dir string) string { return (&driver{dirs: dirs{root: dir}}).groupPrefix() }
