package local

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/bound"
)

// rmdirPatience is the maximum time in which the kernel releases a cgroup whose processes have exited.
const rmdirPatience = 10 * time.Second

// cgroups describes where this process may create control groups: one directory per controller. On version 2, all
// controllers have the same directory.
type cgroups struct {
	v2   bool
	dirs map[string]string // by controller: memory, pids, cpu
	swap bool              // memory and swap can be limited together
}

func (c cgroups) memory() bool { return c.dirs["memory"] != "" && c.swap }
func (c cgroups) cpu() bool    { return c.dirs["cpu"] != "" }

// allControllers returns the controllers of version 1. Some hosts lack the last two.
func allControllers() []string {
	return append(controllers(), "cpuacct", "freezer")
}

// version returns "1" or "2", or "none" if this process cannot create control groups.
func (c cgroups) version() string {
	switch {
	case len(c.dirs) == 0:
		return "none"
	case c.v2:
		return "2"
	}
	return "1"
}

func controllers() []string { return []string{"memory", "pids", "cpu"} }

// findCgroups detects where this process can create control groups.
func findCgroups() cgroups {
	c := cgroups{dirs: map[string]string{}}
	mounts := host.CgroupMounts()
	for _, name := range allControllers() {
		if dir := mounts[name]; dir != "" && canWrite(dir) {
			c.dirs[name] = dir
		}
	}
	if unified := mounts[""]; unified != "" && len(c.dirs) == 0 {
		if dir, ok := delegated(unified, host.Cgroups(os.Getpid())[""]); ok {
			c.v2 = true
			for _, name := range controllers() {
				c.dirs[name] = dir
			}
		}
	}
	c.swap = c.v2 || host.Exists(filepath.Join(c.dirs["memory"], "memory.memsw.limit_in_bytes"))
	return c
}

// delegated searches for a version 2 group with all controllers delegated and permission for this process to create
// groups in it. For root, this is the root group. For other users, it is the parent of the process's group.
func delegated(mount, own string) (string, bool) {
	candidates := []string{mount, filepath.Dir(filepath.Join(mount, own))}
	for _, dir := range candidates {
		if !strings.HasPrefix(dir+"/", mount+"/") || !canWrite(dir) || !canWrite(filepath.Join(dir, "cgroup.procs")) {
			continue
		}
		if handsDown(dir) {
			return dir, true
		}
		// The root group and an empty group can be changed to delegate controllers.
		err := writeFile(filepath.Join(dir, "cgroup.subtree_control"), "+memory +pids +cpu")
		if err == nil && handsDown(dir) {
			return dir, true
		}
	}
	return "", false
}

func handsDown(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return false
	}
	have := strings.Fields(string(b))
	return !slices.ContainsFunc(controllers(), func(name string) bool { return !slices.Contains(have, name) })
}

func canWrite(dir string) bool { return unix.Access(dir, unix.W_OK) == nil }

// writeFile writes a value to a file of the kernel in one call.
func writeFile(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return host.Public(err)
	}
	_, err = f.WriteString(value)
	return host.Public(errors.Join(err, f.Close()))
}

// group is a sandbox's control group.
type group struct {
	c    cgroups
	name string
}

// group returns a sandbox's control group.
func (b *driver) group(x *sandbox) group { return group{b.machine.cgroups, x.Group} }

// groupPrefix returns the prefix of all control group names of this state directory. The rest of a name is a nonce.
func (b *driver) groupPrefix() string {
	sum := sha256.Sum256([]byte(b.dirs.root))
	return "workcell-" + hex.EncodeToString(sum[:4]) + "-"
}

// sweepGroups removes control groups of removed sandboxes. The kernel refuses to remove a group with running processes.
func (b *driver) sweepGroups() error {
	var dirs []string
	for _, d := range b.machine.cgroups.dirs {
		found, err := filepath.Glob(filepath.Join(d, b.groupPrefix()+"*"))
		if err != nil {
			return err
		}
		dirs = append(dirs, found...)
	}
	if len(dirs) == 0 {
		return nil
	}
	entries, err := os.ReadDir(b.dirs.sandboxes())
	if err != nil {
		return host.Public(err)
	}
	known := map[string]bool{}
	for _, e := range entries {
		if x, err := b.readSandbox(e.Name()); err == nil {
			known[x.Group] = true
		}
	}
	for _, dir := range dirs {
		if !known[filepath.Base(dir)] { // a sandbox's record exists before and after the group
			_ = unix.Rmdir(dir) // another process may have removed it, or it is still in use
		}
	}
	return nil
}

// groupNames matches names of groupPrefix and a nonce. Any other name, especially an empty one, could refer to a group
// with foreign processes.
var groupNames = regexp.MustCompile(`^workcell-[0-9a-f]{8}-[0-9a-f]{16}$`)

// dir returns the group's directory for a controller, or an empty string.
func (g group) dir(controller string) string {
	if parent := g.c.dirs[controller]; parent != "" && groupNames.MatchString(g.name) {
		return filepath.Join(parent, g.name)
	}
	return ""
}

// all returns the group's directories without duplicates.
func (g group) all() []string {
	var dirs []string
	for _, name := range allControllers() {
		if d := g.dir(name); d != "" && !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	return dirs
}

// create creates the group. It replaces an existing group.
func (g group) create(ctx context.Context) error {
	for _, d := range g.all() {
		err := os.Mkdir(d, 0o755)
		if errors.Is(err, os.ErrExist) { // the counters belong to the last start
			if err = g.remove(ctx); err == nil {
				err = os.Mkdir(d, 0o755)
			}
		}
		if err != nil {
			return failed("creating a control group", err)
		}
	}
	return nil
}

// limit sets the group's limits.
func (g group) limit(l backend.Limits, cpus int) error {
	for _, s := range g.settings(l, cpus) {
		if err := writeFile(s[0], s[1]); err != nil {
			return fmt.Errorf("local: setting %s of a control group: %w", filepath.Base(s[0]), err)
		}
	}
	return nil
}

// settings returns files and values in the order in which they must be written.
func (g group) settings(l backend.Limits, cpus int) [][2]string {
	var out [][2]string
	// A host may have a control group without the means for a limit, and a sandbox may be older than its host's groups.
	unlimited := map[string]bool{"memory": l.MemoryBytes == 0, "cpu": l.CPUMillis == 0}
	set := func(controller, file string, value any) {
		if dir := g.dir(controller); dir != "" && !unlimited[controller] {
			out = append(out, [2]string{filepath.Join(dir, file), fmt.Sprint(value)})
		}
	}
	memory := l.MemoryBytes + kit.GuestMemory
	set("pids", "pids.max", l.PIDs+kit.GuestPIDs)
	quota, period := kit.CPUQuota(l, cpus)
	if g.c.v2 {
		set("memory", "memory.max", memory)
		if host.Exists(filepath.Join(g.dir("memory"), "memory.swap.max")) {
			set("memory", "memory.swap.max", 0)
		}
		set("cpu", "cpu.max", fmt.Sprintf("%d %d", quota, period))
		return out
	}
	set("memory", "memory.limit_in_bytes", memory)
	if g.c.swap {
		set("memory", "memory.memsw.limit_in_bytes", memory)
	}
	set("cpu", "cpu.cfs_quota_us", quota)
	return out
}

// join moves a process to the group.
func (g group) join(pid int) error {
	for _, d := range g.all() {
		if err := writeFile(filepath.Join(d, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("local: putting a process into its control group: %w", err)
		}
	}
	return nil
}

// kill kills every process of the group.
func (g group) kill(ctx context.Context, boot string) error {
	for _, d := range g.all() {
		for _, pid := range host.Members(d) { // if the list cannot be read, remove reports an error
			if p, err := identify(pid, boot); err == nil {
				if err := p.kill(ctx, boot); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// remove removes the group after all processes were killed. It does nothing if the group does not exist.
func (g group) remove(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, rmdirPatience)
	defer cancel()
	for _, d := range g.all() {
		for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
			err := unix.Rmdir(d)
			if err == nil || errors.Is(err, unix.ENOENT) {
				break
			}
			if !errors.Is(err, unix.EBUSY) || ctx.Err() != nil {
				return fmt.Errorf("local: removing a control group: %w", err)
			}
			bound.Pause(ctx, pause)
		}
	}
	return nil
}
