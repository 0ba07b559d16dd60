package host

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
)

// CgroupMounts returns where the hierarchies of control groups are mounted, by controller; that of version 2 under "".
func CgroupMounts() map[string]string {
	found := map[string]string{}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return found
	}
	for line := range strings.Lines(string(mounts)) {
		before, after, ok := strings.Cut(line, " - ")
		f, g := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 5 || len(g) < 3 {
			continue
		}
		var names []string
		switch g[0] {
		case "cgroup":
			names = strings.Split(g[2], ",") // the mount's other options among them, which nobody asks for
		case "cgroup2":
			names = []string{""}
		}
		for _, name := range names {
			if found[name] == "" {
				found[name] = f[4]
			}
		}
	}
	return found
}

// Accounting is the controller that counts CPU time on version 1.
const Accounting = "cpuacct"

// Cgroup is a control group by its directory for each controller, which is the same for all on version 2.
type Cgroup struct {
	V2   bool
	Dirs map[string]string
}

// Usage reads the group's counters. What cannot be read is zero, which stands for unknown.
func (g Cgroup) Usage() backend.Usage {
	read := func(controller, file, name string) int64 {
		n, _ := g.counter(controller, file, name)
		return n
	}
	if g.V2 {
		return backend.Usage{
			CPU: time.Duration(read("cpu", "cpu.stat", "usage_usec")) * time.Microsecond, MemoryBytes: read("memory", "memory.current", ""),
		}
	}
	return backend.Usage{
		CPU: time.Duration(read(Accounting, "cpuacct.usage", "")), MemoryBytes: read("memory", "memory.usage_in_bytes", ""),
	}
}

// OOMKills returns how often the kernel ended a process of the group for lack of memory; false where nobody counts.
func (g Cgroup) OOMKills() (int64, bool) {
	if g.V2 {
		return g.counter("memory", "memory.events", "oom_kill")
	}
	return g.counter("memory", "memory.oom_control", "oom_kill")
}

// counter reads the number in a file of the group, in the line of a name where it has several.
func (g Cgroup) counter(controller, file, name string) (int64, bool) {
	b, err := os.ReadFile(filepath.Join(g.Dirs[controller], file))
	if err != nil || g.Dirs[controller] == "" {
		return 0, false
	}
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line))
		if name != "" && (len(f) != 2 || f[0] != name) || len(f) == 0 {
			continue
		}
		n, err := strconv.ParseInt(f[len(f)-1], 10, 64)
		return n, err == nil
	}
	return 0, false
}
