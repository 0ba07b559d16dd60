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
)

const (
	cpuPeriod = 100_000 // microseconds
	// rmdirPatience is how long the kernel may take to let go of a cgroup whose processes have ended.
	rmdirPatience = 10 * time.Second
)

// cgroups is where this process may make control groups: a directory per controller. On version 2 they are all the
// same.
type cgroups struct {
	v2   bool
	dirs map[string]string // by controller: memory, pids, cpu
	swap bool              // memory and swap can be limited together
}

func (c cgroups) memory() bool { return c.dirs["memory"] != "" && c.swap }
func (c cgroups) cpu() bool    { return c.dirs["cpu"] != "" }

// allControllers are those of version 1, the last two of which are missing on some machines.
func allControllers() []string {
	return append(controllers(), "cpuacct", host.FreezerController)
}

// version is "1", "2", or "none" where no control group can be made.
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

// findCgroups looks for places where control groups can be made.
func findCgroups() cgroups {
	c := cgroups{dirs: map[string]string{}}
	mounts := host.CgroupMounts()
	for _, name := range allControllers() {
		if dir := mounts[name]; dir != "" && canMake(dir) {
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
	c.swap = c.v2 || exists(filepath.Join(c.dirs["memory"], "memory.memsw.limit_in_bytes"))
	return c
}

// delegated looks for a group of version 2 that hands all our controllers down to groups that we may make in it: the
// root for root, else what lies above our own.
func delegated(mount, own string) (string, bool) {
	candidates := []string{mount, filepath.Dir(filepath.Join(mount, own))}
	for _, dir := range candidates {
		if !strings.HasPrefix(dir+"/", mount+"/") || !canMake(dir) || unix.Access(filepath.Join(dir, "cgroup.procs"), unix.W_OK) != nil {
			continue
		}
		if handsDown(dir) {
			return dir, true
		}
		// An empty group may be told to, and the root.
		if err := writeFile(filepath.Join(dir, "cgroup.subtree_control"), "+memory +pids +cpu"); err == nil && handsDown(dir) {
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

func canMake(dir string) bool { return unix.Access(dir, unix.W_OK) == nil }

func exists(file string) bool { return unix.Access(file, unix.F_OK) == nil }

// writeFile writes a value into a file of the kernel's, in one call.
func writeFile(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return scrub(err)
	}
	_, err = f.WriteString(value)
	return scrub(errors.Join(err, f.Close()))
}

// group is a sandbox's control group.
type group struct {
	c    cgroups
	name string
}

// group returns a sandbox's control group.
func (b *driver) group(x *sandbox) group { return group{b.machine.cgroups, x.Group} }

// groupPrefix begins the names of all control groups of this state directory's sandboxes; a nonce follows.
func (b *driver) groupPrefix() string {
	sum := sha256.Sum256([]byte(b.dirs.root))
	return "workcell-" + hex.EncodeToString(sum[:4]) + "-"
}

// sweepGroups removes control groups whose sandbox is gone. One in which something runs cannot be removed.
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
		return scrub(err)
	}
	known := map[string]bool{}
	for _, e := range entries {
		if x, err := b.readSandbox(e.Name()); err == nil {
			known[x.Group] = true
		}
	}
	for _, dir := range dirs {
		if !known[filepath.Base(dir)] { // a sandbox's record exists before its group, and after it
			_ = unix.Rmdir(dir) // another process may have been faster, or it is in use after all
		}
	}
	return nil
}

// groupNames are those that groupPrefix and a nonce make. Any other, an empty one above all, could lead to a group that
// holds the processes of others.
var groupNames = regexp.MustCompile(`^workcell-[0-9a-f]{8}-[0-9a-f]{16}$`)

// dir is the group's directory for a controller; empty when there is none.
func (g group) dir(controller string) string {
	if parent := g.c.dirs[controller]; parent != "" && groupNames.MatchString(g.name) {
		return filepath.Join(parent, g.name)
	}
	return ""
}

// all are the group's directories, each once.
func (g group) all() []string {
	var dirs []string
	for _, name := range allControllers() {
		if d := g.dir(name); d != "" && !slices.Contains(dirs, d) {
			dirs = append(dirs, d)
		}
	}
	return dirs
}

// create makes the group, or makes it again.
func (g group) create(ctx context.Context) error {
	for _, d := range g.all() {
		err := os.Mkdir(d, 0o755)
		if errors.Is(err, os.ErrExist) { // what it counted is of the last start
			if err = g.remove(ctx); err == nil {
				err = os.Mkdir(d, 0o755)
			}
		}
		if err != nil {
			return fmt.Errorf("local: creating a control group: %w", scrub(err))
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

// settings returns files and their values, in the order in which they must be written.
func (g group) settings(l backend.Limits, cpus int) [][2]string {
	var out [][2]string
	set := func(controller, file string, value int64) {
		if dir := g.dir(controller); dir != "" {
			out = append(out, [2]string{filepath.Join(dir, file), strconv.FormatInt(value, 10)})
		}
	}
	memory := l.MemoryBytes + kit.GuestMemory
	set("pids", "pids.max", l.PIDs+kit.GuestPIDs)
	// Having less than asked for is bound enough.
	quota := min(l.CPUMillis, int64(cpus)*1000) * cpuPeriod / 1000
	if g.c.v2 {
		set("memory", "memory.max", memory)
		if dir := g.dir("memory"); dir != "" && exists(filepath.Join(dir, "memory.swap.max")) {
			set("memory", "memory.swap.max", 0)
		}
		if dir := g.dir("cpu"); dir != "" {
			out = append(out, [2]string{filepath.Join(dir, "cpu.max"), fmt.Sprintf("%d %d", quota, cpuPeriod)})
		}
		return out
	}
	set("memory", "memory.limit_in_bytes", memory)
	if g.c.swap {
		set("memory", "memory.memsw.limit_in_bytes", memory)
	}
	set("cpu", "cpu.cfs_quota_us", quota)
	return out
}

// join puts a process into the group.
func (g group) join(pid int) error {
	for _, d := range g.all() {
		if err := writeFile(filepath.Join(d, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("local: putting a process into its control group: %w", err)
		}
	}
	return nil
}

// kill ends every process of the group.
func (g group) kill(ctx context.Context, boot string) error {
	for _, d := range g.all() {
		for _, pid := range host.Members(d) { // what cannot be read, remove reports
			if p, err := identify(pid, boot); err == nil {
				if err := p.kill(ctx, boot); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// remove removes the group, whose processes have been killed. One that is not there is no error.
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
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
		}
	}
	return nil
}
