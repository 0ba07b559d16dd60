package proc

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The kernel allows every process of the guest agent's user to lower the guest agent's resource limits and the
// priorities of all threads. The guest agent has no privileges, so it could not raise them again. To prevent these
// changes, the guest agent and all commands have a system call filter, in addition to the engine's filter. The filter
// also prevents a command from taking the tag of another command, and from forging a fault signal, for example by
// siginfo or as the signal of a ready file. Go's runtime ends the program on such a signal, unless kill or tgkill sent
// it.
//
// The filter also makes io_setup fail as on a kernel without asynchronous I/O. The kernel has one counter for the whole
// host, which two calls can exhaust. Programs then fall back to threads.

// limitKey distinguishes the guest agent's own prlimit calls for commands from calls by commands. It is passed in
// unused registers of the call.
type limitKey [2]uint64

// abi is a system call interface, with the numbers of calls with effects on other processes.
type abi struct {
	arch                                                 uint32
	prlimit, setrlimit, setpriority, ioprioSet, allocate uint32
	// threads are sched_setparam, sched_setscheduler, sched_setattr, sched_setaffinity, rt_sigqueueinfo, and
	// rt_tgsigqueueinfo. Each list also contains the numbers on x32, if they differ.
	threads             []uint32
	fcntl, setup, ioctl []uint32 // setup is io_setup
}

// faults are the signals for faults of a program.
var faults = []uint32{uint32(unix.SIGILL), uint32(unix.SIGTRAP), uint32(unix.SIGBUS), uint32(unix.SIGFPE),
	uint32(unix.SIGSEGV), uint32(unix.SIGSTKFLT), uint32(unix.SIGSYS)}

// reservations are the type and number of ioctls for allocating space without writing: FS_IOC_RESVSP, FS_IOC_RESVSP64,
// FS_IOC_ZERO_RANGE, XFS_IOC_ALLOCSP, XFS_IOC_ALLOCSP64, and FS_IOC_FSSETXATTR, which sets the amount of allocated
// space per write.
var reservations = []uint32{0x5828, 0x582a, 0x5839, 0x580a, 0x5824, 0x5820}

// x32Bit is set in call numbers of the x32 ABI. For these calls, x32 otherwise uses the numbers of amd64.
const x32Bit = 0x40000000

var abis = []abi{
	{
		arch: unix.AUDIT_ARCH_X86_64, prlimit: 302, setrlimit: 160, setpriority: 141, ioprioSet: 251, allocate: 285,
		threads: []uint32{142, 144, 314, 203, 129, 297, 524, 536},
		fcntl:   []uint32{72}, setup: []uint32{206, 543}, ioctl: []uint32{16, 514},
	}, {
		arch: unix.AUDIT_ARCH_I386, prlimit: 340, setrlimit: 75, setpriority: 97, ioprioSet: 289, allocate: 324,
		threads: []uint32{154, 156, 351, 241, 178, 335},
		fcntl:   []uint32{55, 221}, setup: []uint32{245}, ioctl: []uint32{54},
	}, {
		arch: unix.AUDIT_ARCH_AARCH64, prlimit: 261, setrlimit: 164, setpriority: 140, ioprioSet: 30, allocate: 47,
		threads: []uint32{118, 119, 274, 122, 138, 240},
		fcntl:   []uint32{25}, setup: []uint32{0}, ioctl: []uint32{29},
	}, {
		arch: unix.AUDIT_ARCH_ARM, prlimit: 369, setrlimit: 75, setpriority: 97, ioprioSet: 314, allocate: 352,
		threads: []uint32{154, 156, 380, 241, 178, 363},
		fcntl:   []uint32{55, 221}, setup: []uint32{243}, ioctl: []uint32{54},
	},
}

// Argument values for all processes of a user.
const (
	prioUser   = 2
	ioprioUser = 3
)

// setDelegation is F_SETDELEG, a lease since Linux 6.19.
const setDelegation = 1024 + 16

const (
	verdictAllow = unix.SECCOMP_RET_ALLOW
	verdictDeny  = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
	verdictNone  = unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)
	verdictWrite = unix.SECCOMP_RET_ERRNO | uint32(unix.EOPNOTSUPP) // C libraries then write instead
)

// newLimitKey returns an unguessable key.
func newLimitKey() limitKey {
	var b [16]byte
	_, _ = rand.Read(b[:]) // documented to never fail
	return limitKey{binary.NativeEndian.Uint64(b[:8]), binary.NativeEndian.Uint64(b[8:])}
}

// install installs a filter for all threads.
func install(filter []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil { // already set by every engine
		return os.NewSyscallError("no_new_privs", err)
	}
	thread, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&prog)))
	if e != 0 {
		return os.NewSyscallError("seccomp", e)
	}
	if thread != 0 {
		return fmt.Errorf("seccomp: thread %d has another filter", thread)
	}
	return nil
}

// lastThread returns the highest thread ID of the process.
func lastThread() (uint32, error) {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0, err
	}
	last := uint64(1)
	for _, t := range tasks {
		id, err := strconv.ParseUint(t.Name(), 10, 32)
		if err != nil {
			return 0, err
		}
		last = max(last, id)
	}
	return uint32(last), nil
}

// guardFilter denies, with EPERM, changes of any process's limits by process ID, changes of the limit with the tags,
// and changes of the priority of threads with IDs up to last and of all processes of a user. It also denies forged
// fault signals for these threads, and leases, because starting a program waits for the end of a lease on its file. No
// ID is needed for the caller's limits. For priorities, C libraries use the ID.
func guardFilter(key limitKey, tag int, last uint32) []unix.SockFilter {
	thread := func(arg int) []unix.SockFilter {
		return []unix.SockFilter{
			loadArg(arg, 0),
			jump(unix.BPF_JGE, 1, 0, 2),
			jump(unix.BPF_JGT, last, 1, 0),
			verdict(verdictDeny),
			verdict(verdictAllow),
		}
	}
	class := func(user uint32) []unix.SockFilter {
		return append([]unix.SockFilter{
			loadArg(0, 0),
			jump(unix.BPF_JEQ, user, 0, 1),
			verdict(verdictDeny),
		}, thread(1)...)
	}
	tags := []unix.SockFilter{
		loadArg(0, 0),
		jump(unix.BPF_JEQ, uint32(tag), 0, 1),
		verdict(verdictDeny),
		verdict(verdictAllow),
	}
	siginfo := []unix.SockFilter{
		loadArg(2, 0),
		jump(unix.BPF_JEQ, 0, 0, 2),
		loadArg(2, 4),
		jump(unix.BPF_JEQ, 0, 1, 0),
		verdict(verdictDeny),
		verdict(verdictAllow),
	}
	ready := append([]unix.SockFilter{
		loadArg(1, 0),
		jump(unix.BPF_JEQ, unix.F_SETLEASE, 1, 0),
		jump(unix.BPF_JEQ, setDelegation, 0, 1),
		verdict(verdictDeny),
		jump(unix.BPF_JEQ, unix.F_SETSIG, 0, uint8(len(faults))+1),
		loadArg(2, 0),
	}, refuse(faults, verdictDeny)...)
	return forEach(func(a abi, on func(nr uint32, rule []unix.SockFilter)) {
		for _, nr := range a.setup {
			on(nr, []unix.SockFilter{verdict(verdictNone)})
		}
		on(a.prlimit, limitRule(key, tag))
		on(a.setrlimit, tags)
		on(a.setpriority, class(prioUser))
		on(a.ioprioSet, class(ioprioUser))
		for _, nr := range a.threads {
			on(nr, thread(0))
		}
		on(424, siginfo) // pidfd_send_signal has the same number on all architectures
		for _, nr := range a.fcntl {
			on(nr, ready)
		}
	})
}

// limitRule denies changes of another process's limits and of the limit with the tags, except in calls with the key.
func limitRule(key limitKey, tag int) []unix.SockFilter {
	return []unix.SockFilter{
		loadArg(0, 0), // process ID
		jump(unix.BPF_JEQ, 0, 0, 2),
		loadArg(1, 0), // resource
		jump(unix.BPF_JEQ, uint32(tag), 0, 12),
		loadArg(2, 0), // new limit
		jump(unix.BPF_JEQ, 0, 0, 2),
		loadArg(2, 4),
		jump(unix.BPF_JEQ, 0, 8, 0),
		loadArg(4, 0),
		jump(unix.BPF_JEQ, uint32(key[0]), 0, 7),
		loadArg(4, 4),
		jump(unix.BPF_JEQ, uint32(key[0]>>32), 0, 5),
		loadArg(5, 0),
		jump(unix.BPF_JEQ, uint32(key[1]), 0, 3),
		loadArg(5, 4),
		jump(unix.BPF_JEQ, uint32(key[1]>>32), 0, 1),
		verdict(verdictAllow),
		verdict(verdictDeny),
	}
}

// writeFilter denies allocations of space without writing, because these can use gigabytes before the guest agent can
// measure them.
func writeFilter() []unix.SockFilter {
	ioctl := append([]unix.SockFilter{loadArg(1, 0), and(0xffff)}, refuse(reservations, verdictWrite)...)
	return forEach(func(a abi, on func(nr uint32, rule []unix.SockFilter)) {
		on(a.allocate, []unix.SockFilter{verdict(verdictWrite)})
		for _, nr := range a.ioctl {
			on(nr, ioctl)
		}
	})
}

// refuse returns the end of a rule: the listed values are denied, others are allowed.
func refuse(values []uint32, with uint32) (out []unix.SockFilter) {
	for i, v := range values {
		out = append(out, jump(unix.BPF_JEQ, v, uint8(len(values)-i), 0))
	}
	return append(out, verdict(verdictAllow), verdict(with))
}

// forEach returns a filter with add's rules for the calls of each ABI.
func forEach(add func(a abi, on func(nr uint32, rule []unix.SockFilter))) (out []unix.SockFilter) {
	const arch = 4 // offset in struct seccomp_data
	for _, a := range abis {
		section := []unix.SockFilter{load(0), and(^uint32(x32Bit))}
		add(a, func(nr uint32, rule []unix.SockFilter) {
			section = append(append(section, jump(unix.BPF_JEQ, nr, 0, uint8(len(rule)))), rule...)
		})
		section = append(section, verdict(verdictAllow))
		out = append(append(out, load(arch), jump(unix.BPF_JEQ, a.arch, 0, uint8(len(section)))), section...)
	}
	return append(out, verdict(verdictAllow)) // the engine's filter handles other ABIs
}

func and(k uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: k}
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

// loadArg loads half of an argument. Half 0 contains the lower 32 bits, which are the only used bits of an ID.
func loadArg(arg int, half uint32) unix.SockFilter { return load(16 + 8*uint32(arg) + half) }

func jump(test uint16, k uint32, yes, no uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | test | unix.BPF_K, Jt: yes, Jf: no, K: k}
}

func verdict(v uint32) unix.SockFilter { return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: v} }

// limit sets the soft and hard limit of a command's process. If pid is 0, it sets the limit of the guest agent.
func (k limitKey) limit(pid, resource int, value uint64) error {
	l := unix.Rlimit{Cur: value, Max: value}
	_, _, e := unix.RawSyscall6(unix.SYS_PRLIMIT64, uintptr(pid), uintptr(resource), uintptr(unsafe.Pointer(&l)), 0,
		uintptr(k[0]), uintptr(k[1]))
	if e != 0 {
		return e
	}
	return nil
}
