package server

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

func (s *Server) handleHealth(r *request) error {
	running, recorded := s.execs.counts()
	h := wire.Health{
		UptimeMillis: time.Since(s.started).Milliseconds(),
		Running:      running,
		Recorded:     recorded,
		RSSBytes:     ownRSS(),
		Goroutines:   runtime.NumGoroutine(),
		Zombies:      zombies(),
		OOMKills:     max(0, s.oom.read()),
	}
	h.MemoryUsed = firstNumber("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
	h.MemoryLimit = firstNumber("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
	h.PIDsUsed = firstNumber("/sys/fs/cgroup/pids.current", "/sys/fs/cgroup/pids/pids.current")
	h.CPUMillis = cpuMillis()
	h.WorkspaceUsed = s.quotas.workspace.now()
	h.Visitors = int(s.visitors.Load())
	return r.answer(h)
}

// cpuMillis is the CPU time that the sandbox has used; 0 when its control group does not show.
func cpuMillis() int64 {
	if b, err := os.ReadFile("/sys/fs/cgroup/cpu.stat"); err == nil {
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "usage_usec "); ok {
				n, _ := strconv.ParseInt(v, 10, 64) // the kernel writes a number
				return n / 1000
			}
		}
	}
	return firstNumber("/sys/fs/cgroup/cpuacct/cpuacct.usage", "/sys/fs/cgroup/cpu,cpuacct/cpuacct.usage") / 1e6
}

func ownRSS() int64 {
	b, err := os.ReadFile("/proc/self/statm")
	f := strings.Fields(string(b))
	if err != nil || len(f) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(f[1], 10, 64) // the kernel writes a number
	return pages * int64(os.Getpagesize())
}

func zombies() int {
	n := 0
	for _, pid := range allPIDs() {
		if p, ok := readStat(pid); ok && p.state == 'Z' {
			n++
		}
	}
	return n
}

// firstNumber reads the first of the files that is there; 0 when none is or it says "max".
func firstNumber(files ...string) int64 {
	for _, name := range files {
		if b, err := os.ReadFile(name); err == nil {
			n, _ := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64) // "max" is no limit, which is 0 here
			return n
		}
	}
	return 0
}

// oomCounter reads how often the kernel ended a process of the sandbox for lack of memory.
type oomCounter struct{ fd int }

// openOOMCounter opens the counter of the sandbox's cgroup, version 2 or 1, as it shows inside a container.
func openOOMCounter() *oomCounter {
	return &oomCounter{openFirst("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")}
}

// read gives the counter, -1 when it cannot be seen.
func (c *oomCounter) read() int64 {
	if c.fd < 0 {
		return -1
	}
	var buf [512]byte
	n, err := unix.Pread(c.fd, buf[:], 0)
	if err != nil {
		return -1
	}
	for line := range bytes.SplitSeq(buf[:n], []byte{'\n'}) {
		if v, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			count, err := strconv.ParseInt(string(v), 10, 64)
			if err == nil {
				return count
			}
		}
	}
	return -1
}

func (c *oomCounter) close() {
	if c.fd >= 0 {
		_ = unix.Close(c.fd) // only read from
	}
}

// programs lists which of the interpreters and tools that agents ask for are there.
func programs(path string) []string {
	if path == "" {
		path = defaultPath
	}
	var found []string
	for _, name := range []string{"sh", "bash", "python3", "python", "pip", "node", "npm", "git", "make", "gcc", "go",
		"perl", "ruby", "java", "curl", "jq"} {
		for _, d := range filepath.SplitList(path) {
			if unix.Access(filepath.Join(d, name), unix.X_OK) == nil {
				found = append(found, name)
				break
			}
		}
	}
	return found
}
