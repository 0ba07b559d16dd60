package proc

import (
	"bytes"
	"strconv"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// Memory thresholds of the guest agent.
const (
	// headroom is the required free memory before a command starts. If a fork finds no memory, the kernel kills a process.
	// If files in shared memory use all memory, the kernel can only kill the guest agent.
	headroom = 1536 << 10
	// plenty is an amount of free memory above which the exact amount does not matter.
	plenty = 8 * headroom
)

// Memory monitors the sandbox's memory. If no limit is visible, it does nothing.
type Memory struct {
	usageFD, limitFD, statFD, tasksFD, oomFD, forksFD int // open files of the cgroup, or -1
}

// OpenMemory returns a Memory for the sandbox's cgroup, version 2 or 1.
func OpenMemory() *Memory {
	return &Memory{
		usageFD: openFirst("memory.current", "memory/memory.usage_in_bytes"),
		limitFD: openFirst("memory.max", "memory/memory.limit_in_bytes"),
		statFD:  openFirst("memory.stat", "memory/memory.stat"),
		tasksFD: openFirst("pids.current", "pids/pids.current"),
		oomFD:   openFirst("memory.events", "memory/memory.oom_control"),
		forksFD: openFirst("pids.events", "pids/pids.events"),
	}
}

// openFirst opens the first existing file of the cgroup. It returns -1 if none exists.
func openFirst(names ...string) int {
	for _, name := range names {
		if fd, err := unix.Open("/sys/fs/cgroup/"+name, unix.O_RDONLY|unix.O_CLOEXEC, 0); err == nil {
			return fd
		}
	}
	return -1
}

// read returns the number after key in an open cgroup file, or -1.
func read(fd int, key string) int64 {
	var buf [4096]byte
	n, err := unix.Pread(fd, buf[:], 0)
	if err != nil {
		return -1
	}
	return Counter(buf[:n], key)
}

// Usage returns the sandbox's used memory and number of tasks. Unknown values are 0.
func (m *Memory) Usage() (used, tasks int64) {
	return max(0, read(m.usageFD, "")), max(0, read(m.tasksFD, ""))
}

// Close closes the cgroup files.
func (m *Memory) Close() {
	for _, fd := range []int{m.usageFD, m.limitFD, m.statFD, m.tasksFD, m.oomFD, m.forksFD} {
		_ = unix.Close(fd) // only used for reading; -1 is ignored
	}
}

// Room returns an error if the memory is not sufficient to start a command.
func (m *Memory) Room() error {
	if free, known := m.free(); known && free < headroom {
		return launchFail(NoResources, memoryFull)
	}
	return nil
}

const memoryFull = "the sandbox's memory is full; files in /dev/shm and /tmp count against it"

// Fits returns an error if the memory is not sufficient for a file of this size. Otherwise the kernel would kill a
// process to make room, possibly the guest agent.
func (m *Memory) Fits(size int64) error {
	if free, known := m.free(); known && free < size+headroom {
		return wire.Errorf(wire.CodeQuota, memoryFull)
	}
	return nil
}

// free returns the free memory, including memory with cached files, which the kernel can free when necessary. Files in
// shared memory do not count. The result is exact if little memory is free.
func (m *Memory) free() (int64, bool) {
	used, limit := read(m.usageFD, ""), read(m.limitFD, "") // the limit may have changed; -1 for "max"
	if used < 0 || limit <= 0 {
		return 0, false
	}
	free := limit - used
	if free <= plenty {
		free += max(0, read(m.statFD, "active_file ")) + max(0, read(m.statFD, "inactive_file "))
	}
	return free, true
}

// Denials counts how often the kernel enforced limits of the sandbox. A count is -1 if it is not visible.
type Denials struct {
	OOMKills int64 // processes killed by the kernel because memory ran out
	Forks    int64 // processes and threads not created because of the limit
}

// Denials returns the counts since the start of the sandbox.
func (m *Memory) Denials() Denials {
	return Denials{read(m.oomFD, "oom_kill "), read(m.forksFD, "max ")}
}

// Since returns the difference to an earlier count.
func (d Denials) Since(before Denials) Denials {
	return Denials{max(0, d.OOMKills-before.OOMKills), max(0, d.Forks-before.Forks)}
}

// Counter returns the number after key in a cgroup file, or -1.
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
