package proc

import (
	"bytes"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// Memory that the guest keeps an eye on.
const (
	// headroom is what must be free before a command is started. A fork that finds no memory makes the kernel kill
	// something, and when files in shared memory fill the limit, nothing but the guest is there to be killed.
	headroom = 1536 << 10
	// ballast is memory that the guest holds in reserve for when it is the last process and the limit is reached.
	ballast = 2 << 20
	// plenty is so much that it does not matter how much exactly.
	plenty = 4 * (headroom + ballast)
)

// Memory watches the sandbox's memory. Without a visible limit it does nothing.
type Memory struct {
	stat                             string       // a file of the cgroup
	usageFD, limitFD, tasksFD, oomFD int          // and open ones, -1 where there is none
	kills                            atomic.Int64 // for lack of memory, when the reserve was taken

	mu   sync.Mutex // guards held
	held []byte     // the ballast; nil while it is given back

	first sync.WaitGroup // the first take, which nobody but a first command waits for
}

// OpenMemory watches the memory of the sandbox's cgroup, version 2 or 1, and takes the reserve.
func OpenMemory() *Memory {
	m := &Memory{usageFD: -1, limitFD: -1}
	m.tasksFD = openFirst("/sys/fs/cgroup/pids.current", "/sys/fs/cgroup/pids/pids.current")
	m.oomFD = openFirst("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")
	for _, f := range [][3]string{
		{"/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat", "/sys/fs/cgroup/memory.max"},
		{"/sys/fs/cgroup/memory/memory.usage_in_bytes", "/sys/fs/cgroup/memory/memory.stat", "/sys/fs/cgroup/memory/memory.limit_in_bytes"},
	} {
		if m.usageFD = openFirst(f[0]); m.usageFD >= 0 {
			m.stat, m.limitFD = f[1], openFirst(f[2])
			m.first.Go(m.take)
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

// preadNumber reads a file that holds a number.
func preadNumber(fd int) (int64, bool) {
	if fd < 0 {
		return 0, false
	}
	var buf [32]byte
	n, err := unix.Pread(fd, buf[:], 0)
	if err != nil {
		return 0, false
	}
	v, err := strconv.ParseInt(string(bytes.TrimSpace(buf[:n])), 10, 64)
	return v, err == nil
}

// Usage returns the memory and the tasks that the sandbox uses, and its limit of memory; 0 for what cannot be seen or has
// no limit.
func (m *Memory) Usage() (used, limit, tasks int64) {
	used, _ = preadNumber(m.usageFD)
	limit, _ = preadNumber(m.limitFD)
	tasks, _ = preadNumber(m.tasksFD)
	return used, limit, tasks
}

// Close frees the reserve.
func (m *Memory) Close() {
	m.first.Wait()
	m.give()
	for _, fd := range []int{m.usageFD, m.limitFD, m.tasksFD, m.oomFD} {
		if fd >= 0 {
			_ = unix.Close(fd) // only read from
		}
	}
}

// Room fails when there is no memory to start a command with. The guest's own reserve must be there as well, for when
// the command takes all the rest.
func (m *Memory) Room() error {
	m.first.Wait()
	free, known := m.free()
	if !known {
		return nil
	}
	if !m.holds() && free >= headroom+ballast {
		m.take()
		free -= ballast
	}
	if free < headroom || !m.holds() {
		return launchFail(NoResources, memoryFull)
	}
	return nil
}

const memoryFull = "the sandbox's memory is full; files in /dev/shm and /tmp count against it"

// Fits fails when there is no memory for a file of so many bytes: the kernel would kill for it, and the guest may be all
// there is to kill.
func (m *Memory) Fits(size int64) error {
	if free, known := m.free(); known && free < size+headroom {
		return wire.Errorf(wire.CodeQuota, memoryFull)
	}
	return nil
}

// Relieve frees the reserve for the guest's own use if the kernel has killed for lack of memory and nothing but
// the guest is left: what the killed ones left in shared memory stays, and the guest would be the next in line. While
// others live they are killed before it, and would take what it frees.
func (m *Memory) Relieve() {
	if m.holds() && m.OOMKills() > m.kills.Load() && m.alone() {
		m.give()
	}
}

// alone reports whether the sandbox has no tasks but the guest's own threads.
func (m *Memory) alone() bool {
	tasks, ok := preadNumber(m.tasksFD)
	own, _ := readStat(os.Getpid())
	return ok && tasks <= own.threads
}

// free returns the free memory, exactly when it is short.
func (m *Memory) free() (int64, bool) {
	used, ok := preadNumber(m.usageFD)
	if !ok {
		return 0, false
	}
	limit, ok := preadNumber(m.limitFD) // before every command: it may be changed, and "max" is none
	if !ok || limit <= 0 {
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
	var sum int64
	for line := range bytes.SplitSeq(b, []byte{'\n'}) {
		for _, name := range []string{"active_file ", "inactive_file "} {
			if v, ok := bytes.CutPrefix(line, []byte(name)); ok {
				n, _ := strconv.ParseInt(string(v), 10, 64) // the kernel writes a number
				sum += n
			}
		}
	}
	return sum
}

func (m *Memory) holds() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.held != nil
}

func (m *Memory) take() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held != nil {
		return
	}
	b, err := unix.Mmap(-1, 0, ballast, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE)
	if err == nil {
		m.held = b
		m.kills.Store(m.OOMKills())
	}
}

func (m *Memory) give() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.held != nil {
		_ = unix.Munmap(m.held) // what was mapped can be unmapped
		m.held = nil
	}
}

// OOMKills returns how often the kernel ended a process of the sandbox for lack of memory, -1 when that cannot be seen.
func (m *Memory) OOMKills() int64 {
	if m.oomFD < 0 {
		return -1
	}
	var buf [512]byte
	n, err := unix.Pread(m.oomFD, buf[:], 0)
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
