package host

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// CgroupMounts returns the mount points of the control group hierarchies by controller. The key of version 2 is "".
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
			names = strings.Split(g[2], ",") // also contains the other mount options, which no caller looks up
		case "cgroup2":
			names = []string{""}
		}
		for _, name := range names {
			found[name] = cmp.Or(found[name], f[4])
		}
	}
	return found
}

// Cgroups returns the control groups of a process by controller. The key of version 2 is "".
func Cgroups(pid int) map[string]string {
	groups := map[string]string{}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return groups
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 {
			for name := range strings.SplitSeq(f[1], ",") {
				groups[name] = f[2]
			}
		}
	}
	return groups
}

// OOMKills returns the number of processes of a control group killed by the kernel because memory ran out. If the
// kernel keeps no such count, OOMKills returns 0. dir is the group's directory of the memory controller.
func OOMKills(dir string, v2 bool) int64 {
	file := "memory.oom_control"
	if v2 {
		file = "memory.events"
	}
	b, err := os.ReadFile(filepath.Join("/", dir, file)) // never a file of the working directory
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "oom_kill" {
			n, _ := strconv.ParseInt(f[1], 10, 64) // the kernel always writes numbers
			return n
		}
	}
	return 0
}
