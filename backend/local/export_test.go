//go:build linux

package local

import (
	"context"

	"github.com/workcell-dev/workcell/backend"
)

// GroupPrefix returns the prefix of the control group names of a state directory.
func GroupPrefix(dir string) string { return (&driver{dirs: dirs{root: dir}}).groupPrefix() }

// Settings returns the settings of a sandbox's control group on version 1 without swap accounting.
func Settings(l backend.Limits) [][2]string {
	c := cgroups{dirs: map[string]string{"memory": "/memory", "pids": "/pids", "cpu": "/cpu"}}
	return group{c, "workcell-01234567-0123456789abcdef"}.settings(l, 1)
}

// ShareTree makes the files of an environment readable for all sandboxes.
func ShareTree(dir string) (int64, error) { return (&driver{}).shareTree(context.Background(), dir) }
