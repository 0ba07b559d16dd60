package promises

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
)

// inspect looks at every process of a sandbox from the machine: nothing of the machine is shared.
func (e *localEngine) inspect(t *testing.T, b *box) {
	t.Helper()
	main, err := e.pid(b.s.Info().EngineID)
	must(t, err)
	list, err := procs(main)
	must(t, err)
	if len(list) == 0 {
		t.Error("no processes")
	}
	for _, pid := range list {
		for _, ns := range []string{"mnt", "pid", "net", "ipc", "uts", "cgroup", "user"} {
			host, err := os.Readlink("/proc/self/ns/" + ns)
			must(t, err)
			if own, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns)); err == nil && own == host {
				t.Errorf("process %d shares the namespace %s with the machine", pid, ns)
			}
		}
		s, err := status(pid)
		if err != nil {
			continue // it has ended meanwhile
		}
		if strings.HasPrefix(s["State"], "Z") {
			continue
		}
		for field, want := range map[string]string{
			"CapInh": "0000000000000000", "CapPrm": "0000000000000000", "CapEff": "0000000000000000", "CapBnd": "0000000000000000",
			"CapAmb": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2",
		} {
			if s[field] != want {
				t.Errorf("%s of process %d is %s, want %s", field, pid, s[field], want)
			}
		}
		if uid := strings.Fields(s["Uid"])[0]; uid == "0" || os.Geteuid() == 0 && len(uid) < 10 {
			t.Errorf("process %d is the machine's user %s", pid, uid)
		}
	}
	for _, file := range []string{"uid_map", "gid_map"} {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", main, file))
		must(t, err)
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			outside, err := strconv.Atoi(f[1])
			must(t, err)
			if os.Geteuid() == 0 && outside < 1<<20 || outside == 0 {
				t.Errorf("%s maps %s", file, line)
			}
		}
	}
}

// inspectMounts reads what is mounted for a sandbox's main process.
func (e *localEngine) inspectMounts(t *testing.T, b *box) {
	t.Helper()
	main, err := e.pid(b.s.Info().EngineID)
	must(t, err)
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", main))
	must(t, err)
	known := e.mounts()
	seen := 0
	for line := range strings.Lines(string(text)) {
		left, right, _ := strings.Cut(strings.TrimSpace(line), " - ")
		f, g := strings.Fields(left), strings.Fields(right)
		from, at, options := f[3], f[4], strings.Split(f[5], ",")
		seen++
		if !known.MatchString(at) {
			t.Errorf("mount %s", line)
		}
		if strings.Contains(strings.Join(f[6:], " "), "shared:") {
			t.Errorf("what is mounted at %s shows on the machine", at)
		}
		if !slices.Contains(options, "nosuid") {
			t.Errorf("%s is not nosuid: %v", at, options)
		}
		// What hides a file of /proc is a null device.
		if !strings.HasPrefix(at, "/dev/") && at != "/dev" && !strings.HasPrefix(at, "/proc/") && !slices.Contains(options, "nodev") {
			t.Errorf("%s is not nodev: %v", at, options)
		}
		// What can be written is the sandbox's own.
		own := g[0] == "tmpfs" || g[0] == "proc" || g[0] == "devpts" || g[0] == "mqueue" || g[0] == "overlay" ||
			strings.Contains(from, "/workspaces/"+b.s.ID()+"/") || strings.HasPrefix(at, "/dev/")
		if !slices.Contains(options, "ro") && !own {
			t.Errorf("%s of the machine can be written to: %s", from, line)
		}
	}
	if seen < 8 {
		t.Errorf("only %d mounts", seen)
	}
}

// benchmark holds a sandbox to what section 5 of the CIS Docker Benchmark asks of a container, read from the kernel.
func (e *localEngine) benchmark(t *testing.T, b *box) {
	t.Helper()
	main, err := e.pid(b.s.Info().EngineID)
	must(t, err)
	caps := w.driver.Capabilities()
	if got := fileOf(t, main, "net/dev"); strings.Count(got, ":") != 1 || !strings.Contains(got, "lo:") {
		t.Errorf("5.9 own network: %q", got)
	}
	for what, c := range map[string]struct {
		enforced bool
		files    []string
		most     int64
	}{
		"5.10 memory":    {caps.Memory, []string{"memory/%s/memory.limit_in_bytes", "%s/memory.max"}, (2048 + 64) << 20},
		"5.11 CPU":       {caps.CPU, []string{"cpu/%s/cpu.cfs_quota_us", "%s/cpu.max"}, 1_000_000},
		"5.28 processes": {caps.PIDs && caps.Memory, []string{"pids/%s/pids.max", "%s/pids.max"}, 1000},
	} {
		if !c.enforced {
			continue // which Capabilities and doctor say; see TestN10Limits for what holds in their place
		}
		n, err := strconv.ParseInt(strings.Fields(e.groupFile(t, b, c.files))[0], 10, 64)
		if err != nil || n <= 0 || n > c.most {
			t.Errorf("%s: limit %d, %v", what, n, err)
		}
	}
	if root := fileOf(t, main, "mountinfo"); regexp.MustCompile(`(?m)^\d+ \d+ \S+ \S+ / ro`).MatchString(root) != (b.s.Info().Root == backend.RootReadonly) {
		t.Errorf("5.12 read-only root: %s", root)
	}
	limits := fileOf(t, main, "limits")
	for _, pattern := range []string{`Max core file size +0 +0 `, `Max open files +\d+ +\d+ `, `Max file size +\d+ +\d+ `} {
		if !regexp.MustCompile(pattern).MatchString(limits) {
			t.Errorf("5.18 limits: no %s in %s", pattern, limits)
		}
	}
	// 5.31: of what it holds open, nothing leads to the machine but its own socket and log, and its own control group.
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", main))
	must(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "/") && !strings.HasPrefix(to, "/dev/") && !strings.HasPrefix(to, "/proc") &&
			!strings.HasSuffix(to, "/guest.log") && !strings.HasPrefix(to, "/sys/fs/cgroup/") && !strings.HasPrefix(to, backend.Workdir) && !ownTmp(t, fd, to) {
			t.Errorf("the main process holds %s open", to)
		}
	}
}

func fileOf(t *testing.T, pid int, name string) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
	must(t, err)
	return string(text)
}

// groupFile reads a file of a sandbox's control group, of either version.
func (e *localEngine) groupFile(t *testing.T, b *box, patterns []string) string {
	t.Helper()
	_, nonce, _ := strings.Cut(b.s.Info().EngineID, "@")
	for _, p := range patterns {
		if text, err := os.ReadFile("/sys/fs/cgroup/" + fmt.Sprintf(p, e.groups()+nonce)); err == nil {
			return string(text)
		}
	}
	t.Fatalf("no control group of %s", b.s.Info().EngineID)
	return ""
}

// ownTmp reports whether an open file, of which the kernel says that it is /tmp, is another directory than the machine's.
func ownTmp(t *testing.T, fd, path string) bool {
	t.Helper()
	if path != "/tmp" {
		return false
	}
	held, err := os.Stat(fd)
	must(t, err)
	machines, err := os.Stat("/tmp")
	must(t, err)
	return !os.SameFile(held, machines)
}
