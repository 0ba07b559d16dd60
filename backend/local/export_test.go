//go:build linux

package local

import "github.com/workcell-dev/workcell/backend"

// GroupPrefix begins the names of the control groups of a state directory's sandboxes.
func GroupPrefix(dir string) string { return (&Backend{dirs: dirs{root: dir}}).groupPrefix() }

// UsageOf reads the counters of a control group below a directory for each controller.
func UsageOf(v2 bool, dirs map[string]string, name string) backend.Usage {
	return group{cgroups{v2: v2, dirs: dirs}, name}.usage()
}
