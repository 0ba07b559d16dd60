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

// cgroups describes the control groups of this host.
type cgroups struct {
	mounts      map[string]string // see host.CgroupMounts
	v2          bool
	controllers []string // controllers of version 2
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

// dirs returns a control group's directories in all hierarchies, without duplicates.
func (c cgroups) dirs(cgroup string) []string {
	var dirs []string
	for _, root := range c.mounts {
		dirs = append(dirs, filepath.Join(root, cgroup))
	}
	slices.Sort(dirs)
	return slices.Compact(dirs)
}

// oomKills returns the number of processes of a sandbox killed by the kernel because memory ran out.
func (c cgroups) oomKills(r *record) int64 {
	root := c.mounts["memory"]
	if c.v2 {
		root = c.mounts[""]
	}
	return host.OOMKills(filepath.Join(root, r.config.Cgroup), c.v2)
}

// cgroupPath returns the path of a sandbox's control group.
func (b *driver) cgroupPath(id string) string { return b.opts.CgroupParent + "/" + id }

// makeCgroup creates a sandbox's control groups before the runtime does. While the runtime creates a group, another
// process may remove the parent together with the last sandbox. makeCgroup repeats this step, and a parent with a child
// cannot be removed. A runtime with a separate kernel (runsc) only limits its own groups. For such a runtime,
// makeCgroup only creates the parent.
func (b *driver) makeCgroup(r *record) error {
	own := ownKernel(r.config.Runtime)
	for _, path := range b.engine.cgroups.dirs(r.config.Cgroup) {
		var err error
		if own {
			if err = unix.Rmdir(path); err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EROFS) {
				return stateError("remove control groups", err) // without limits, the sandbox must not start
			}
			path = filepath.Dir(path)
		}
		for range 100 {
			if err = os.MkdirAll(path, 0o755); !errors.Is(err, fs.ErrNotExist) {
				break
			}
		}
		if err != nil && !errors.Is(err, syscall.EROFS) { // a group also unusable by the runtime
			return stateError("create control groups", err)
		}
	}
	return nil
}

// removeCgroup removes a sandbox's control groups after the runtime, and the parent if it is empty. It kills remaining
// processes: if the creation of a container was canceled, runsc leaves a kernel that it no longer knows. It ignores
// busy and missing groups.
func (b *driver) removeCgroup(cgroup string) {
	begin := time.Now()
	for _, path := range b.engine.cgroups.dirs(cgroup) {
		for errors.Is(unix.Rmdir(path), unix.EBUSY) && time.Since(begin) < 2*time.Second { // a killed kernel exits slowly
			for _, pid := range host.Members(path) {
				_ = unix.Kill(pid, unix.SIGKILL) // it may have exited
			}
			time.Sleep(10 * time.Millisecond)
		}
		// A runtime may outlive the killed shim and create the group of an earlier container of the sandbox after the
		// removal.
		earlier, _ := filepath.Glob(strings.TrimSuffix(path, filepath.Ext(path)) + ".*") // the pattern is valid
		for _, p := range earlier {
			_ = unix.Rmdir(p)
		}
		_ = unix.Rmdir(filepath.Dir(path))
	}
}
