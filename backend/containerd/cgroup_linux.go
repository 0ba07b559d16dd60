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
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend/internal/host"
)

// cgroups describe this machine's control groups.
type cgroups struct {
	mounts      map[string]string // see host.CgroupMounts
	v2          bool
	controllers []string // of version 2
	swap        bool     // memory and swap can be limited together
}

func probeCgroups() (cgroups, error) {
	c := cgroups{mounts: host.CgroupMounts(), swap: true}
	if len(c.mounts) == 0 {
		return c, errors.New("no control groups are mounted")
	}
	if c.v2 = c.mounts["memory"] == "" && c.mounts["pids"] == ""; c.v2 {
		data, err := os.ReadFile(filepath.Join(c.mounts[""], "cgroup.controllers"))
		if err != nil {
			return c, fmt.Errorf("control groups: %w", err)
		}
		c.controllers = strings.Fields(string(data))
		return c, nil
	}
	_, err := os.Stat(filepath.Join(c.mounts["memory"], "memory.memsw.limit_in_bytes"))
	c.swap = err == nil
	return c, nil
}

func (c cgroups) has(controller string) bool {
	return c.mounts[controller] != "" || slices.Contains(c.controllers, controller)
}

func (c cgroups) version() string {
	if c.v2 {
		return "2"
	}
	return "1"
}

// dirs returns a control group's directories in all hierarchies, each once.
func (c cgroups) dirs(cgroup string) []string {
	var dirs []string
	for _, root := range c.mounts {
		dirs = append(dirs, filepath.Join(root, cgroup))
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// oomKills returns how often the kernel ended a process of a sandbox for lack of memory.
func (c cgroups) oomKills(r *record) int64 {
	root := c.mounts["memory"]
	if c.v2 {
		root = c.mounts[""]
	}
	return host.OOMKills(filepath.Join(root, r.config.Cgroup), c.v2)
}

// cgroupPath names a sandbox's control group.
func (b *driver) cgroupPath(id string) string { return b.opts.CgroupParent + "/" + id }

// makeCgroup makes a sandbox's control groups before the runtime does. The runtime could find their parent removed by
// somebody who removed the last sandbox between its own steps; here such a step is repeated, and a parent that has a
// child stays. A runtime with a kernel of its own (runsc) limits only a group that it made itself, and gets the parent
// alone.
func (b *driver) makeCgroup(r *record) error {
	own := ownKernel(r.config.Runtime)
	for _, path := range b.engine.cgroups.dirs(r.config.Cgroup) {
		var err error
		if own {
			if err = unix.Rmdir(path); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EROFS) {
				return stateError("remove control groups", err) // without limits the sandbox must not start
			}
			path = filepath.Dir(path)
		}
		for range 100 {
			if err = os.MkdirAll(path, 0o755); !errors.Is(err, fs.ErrNotExist) {
				break
			}
		}
		if err != nil && !errors.Is(err, syscall.EROFS) { // what the runtime cannot use either
			return stateError("create control groups", err)
		}
	}
	return nil
}

// removeCgroup removes what the runtime left of a sandbox's control groups, and their parent with the last sandbox.
// What is busy or gone stays or is gone.
func (b *driver) removeCgroup(cgroup string) {
	begin := time.Now()
	for _, path := range b.engine.cgroups.dirs(cgroup) {
		for errors.Is(unix.Rmdir(path), unix.EBUSY) && time.Since(begin) < 2*time.Second { // a kernel of its own that was killed ends slowly
			time.Sleep(10 * time.Millisecond)
		}
		// A runtime that outlives its killed shim may make the group of an earlier container of the sandbox after its
		// removal.
		earlier, _ := filepath.Glob(strings.TrimSuffix(path, filepath.Ext(path)) + ".*") // the pattern is well-formed
		for _, p := range earlier {
			_ = unix.Rmdir(p)
		}
		_ = unix.Rmdir(filepath.Dir(path))
	}
}
