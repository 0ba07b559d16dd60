package proc

import (
	"bytes"
	"os"
	"strconv"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// Memory that the guest keeps an eye on.
const (
	// headroom is what must be free before a command is started. A fork that finds no memory makes the kernel kill
	// something, and when files in shared memory fill the limit, nothing but the guest is there to be killed.
	headroom = 1536 << 10
	// plenty is so much that it does not matter how much exactly.
	plenty = 8 * headroom
)

// Memory watches the sandbox's memory. Without a visible limit it does nothing.
type Memory struct {
	stat                                      string // path of memory.stat
	usageFD, limitFD, tasksFD, oomFD, forksFD int    // open files of the cgroup, or -1
}

// OpenMemory watches the memory of the sandbox's cgroup, version 2 or 1.
func OpenMemory() *Memory {
	m := &Memory{usageFD: -1, limitFD: -1}
	m.tasksFD = openFirst("/sys/fs/cgroup/pids.current", "/sys/fs/cgroup/pids/pids.current")
	m.oomFD = openFirst("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
	m.forksFD = openFirst("/sys/fs/cgroup/pids.events", "/sys/fs/cgroup/pids/pids.events")
	for _, f := range [][3]string{
		{"/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory.max"},
		{"/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat", "/sys/fs/cgroup/memory/memory.limit_in_bytes"},
	} {
		if m.usageFD = openFirst(f[0]); m.usageFD >= 0 {
			m.stat, m.limitFD = f[1], openFirst(f[2])
			return m
		}
	}
	return m
}

// openFirst opens the first of the files that is there; -1 when none is.
func openFirst(names ...string) int {
	for _, name := range names {
		if fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			return fd
		}
	}
	return -1
}

// read returns the number behind key in an open file of a cgroup, or -1.
func read(fd int, key string) int64 {
	var buf [512]byte
	n, err := unix.Pread(fd, buf[:], 0)
	if err != nil {
		return -1
	}
	return Counter(buf[:n], key)
}

// Usage returns the memory and the tasks that the sandbox uses, and its limit of memory; 0 for what cannot be seen or
// has no limit.
func (m *Memory) Usage() (used, limit, tasks int64) {
	return max(0, read(m.usageFD, "")), max(0, read(m.limitFD, "")), max(0, read(m.tasksFD, ""))
}

// Close closes the cgroup's files.
func (m *Memory) Close() {
	for _, fd := range []int{m.usageFD, m.limitFD, m.tasksFD, m.oomFD, m.forksFD} {
		_ = unix.Close(fd) // only read from, and not open where it is -1
	}
}

// Room fails when there is no memory to start a command with.
func (m *Memory) Room() error {
	if free, known := m.free(); known && free < headroom {
		return launchFail(NoResources, memoryFull)
	}
	return nil
}

const memoryFull = "the sandbox's memory is full; files in /dev/shm and /tmp count against it"

// Fits fails when there is no memory for a file of so many bytes: the kernel would kill for it, and the guest may be
// all there is to kill.
func (m *Memory) Fits(size int64) error {
	if free, known := m.free(); known && free < size+headroom {
		return wire.Errorf(wire.CodeQuota, memoryFull)
	}
	return nil
}

// free returns the free memory, exactly when it is short.
func (m *Memory) free() (int64, bool) {
	used, limit := read(m.usageFD, ""), read(m.limitFD, "") // the limit may have changed; -1 for "max"
	if used < 0 || limit <= 0 {
		return 0, false
	}
	if free := limit - used; free > plenty {
		return free, true
	}
	return limit - used + m.reclaimable(), true
}

// reclaimable is the part of the usage that the kernel frees when it is needed: cached files. Files in shared
// memory are not among them.
func (m *Memory) reclaimable() int64 {
	b, err := os.ReadFile(m.stat)
	if err != nil {
		return 0
	}
	return max(0, Counter(b, "active_file ")) + max(0, Counter(b, "inactive_file "))
}

// Denials counts how often the kernel enforced limits of the sandbox, -1 if the guest cannot see the count.
type Denials struct {
	OOMKills int64 // processes that it killed for lack of memory
	Forks    int64 // processes and threads that it did not make, because there were too many
}

// Denials returns the counts since the sandbox was started.
func (m *Memory) Denials() Denials {
	return Denials{read(m.oomFD, "oom_kill "), read(m.forksFD, "max ")}
}

// Since returns what happened after an earlier count.
func (d Denials) Since(before Denials) Denials {
	return Denials{max(0, d.OOMKills-before.OOMKills), max(0, d.Forks-before.Forks)}
}

// Counter returns the number behind key in a file of a cgroup, or -1.
func Counter(file []byte, key string) int64 {
	for line := range bytes.Lines(file) {
		if v, ok := bytes.CutPrefix(line, []byte(key)); ok {
			if n, err := strconv.ParseInt(string(bytes.TrimSpace(v)), 10, 64); err == nil {
				return n
			}
		}
	}
	return -1
}
