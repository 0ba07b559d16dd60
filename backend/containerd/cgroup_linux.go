package containerd

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroups describe this machine's control groups.
type cgroups struct {
	version     int
	controllers []string // "memory", "cpu", "pids" …
	swap        bool     // memory and swap can be limited together
	roots       []string // directories of the hierarchies
}

func probeCgroups(root string) (cgroups, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(root, &st); err != nil {
		return cgroups{}, fmt.Errorf("control groups: %w", err)
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		data, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
		if err != nil {
			return cgroups{}, fmt.Errorf("control groups: %w", err)
		}
		return cgroups{version: 2, controllers: strings.Fields(string(data)), swap: true, roots: []string{root}}, nil
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return cgroups{}, fmt.Errorf("control groups: %w", err)
	}
	c := cgroups{version: 1}
	for _, e := range entries {
		dir := filepath.Join(root, e.Name())
		if real, err := filepath.EvalSymlinks(dir); err == nil { // "cpu" may be a link to "cpu,cpuacct"
			dir = real
		}
		if unix.Statfs(dir, &st) != nil || st.Type != unix.CGROUP_SUPER_MAGIC && st.Type != unix.CGROUP2_SUPER_MAGIC {
			continue
		}
		c.controllers = append(c.controllers, e.Name())
		if !slices.Contains(c.roots, dir) {
			c.roots = append(c.roots, dir)
		}
	}
	_, err = os.Stat(filepath.Join(root, "memory/memory.memsw.limit_in_bytes"))
	c.swap = err == nil
	return c, nil
}

func (c cgroups) has(controller string) bool { return slices.Contains(c.controllers, controller) }

// cgroupPath names a sandbox's control group.
func (b *Backend) cgroupPath(id string) string { return b.opts.CgroupParent + "/" + id }

// makeCgroup makes a sandbox's control groups before the runtime does. The runtime could find their parent removed by
// somebody who removed the last sandbox between its own steps; here such a step is repeated, and a parent that has a
// child stays.
func (b *Backend) makeCgroup(cgroup string) error {
	for _, root := range b.engine.cgroups.roots {
		path := filepath.Join(root, cgroup)
		var err error
		for range 100 {
			if err = os.MkdirAll(path, 0o755); !errors.Is(err, fs.ErrNotExist) {
				break
			}
		}
		if err != nil && !errors.Is(err, syscall.EROFS) { // what the runtime cannot use either
			return stateError("make control groups", err)
		}
	}
	return nil
}

// removeCgroup removes what the runtime left of a sandbox's control groups, and their parent with the last sandbox.
// What is busy or gone stays or is gone.
func (b *Backend) removeCgroup(cgroup string) {
	for _, root := range b.engine.cgroups.roots {
		_ = unix.Rmdir(filepath.Join(root, cgroup))
		_ = unix.Rmdir(filepath.Join(root, filepath.Dir(cgroup)))
	}
}
