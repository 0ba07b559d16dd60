package launch

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setLimits sets the resource limits of all processes in the sandbox.
func setLimits(limits []Rlimit) error {
	for _, l := range limits {
		var old unix.Rlimit
		if err := unix.Prlimit(0, l.Resource, nil, &old); err != nil {
			return failed(IsolationLimits, fmt.Sprintf("reading resource limit %d", l.Resource), err)
		}
		v := min(l.Value, old.Max)
		if err := unix.Prlimit(0, l.Resource, &unix.Rlimit{Cur: v, Max: v}, nil); err != nil {
			return failed(IsolationLimits, fmt.Sprintf("setting resource limit %d", l.Resource), err)
		}
	}
	return failed(IsolationLimits, "setting the OOM score", settleScore())
}

// settleScore removes the host process's OOM protection, inherited by the launcher.
func settleScore() error {
	const file = "/proc/self/oom_score_adj"
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if score, err := strconv.Atoi(strings.TrimSpace(string(b))); err != nil || score >= 0 {
		return err
	}
	return os.WriteFile(file, []byte("0"), 0)
}

// harden permanently drops all privileges. Each step needs privileges dropped by a later step.
func harden(cfg *Config) error {
	// If keyrings are not accessible, the host's keyring cannot be left, but it also cannot be used.
	_, _, e := unix.Syscall(unix.SYS_KEYCTL, unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0)
	if e != 0 && e != unix.ENOSYS && e != unix.EPERM {
		return failed(IsolationPrivileges, "leaving the host's keyring", e)
	}
	if err := dropCapabilities(cfg.User); err != nil {
		return err
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return failed(IsolationPrivileges, "setting it", err)
	}
	if cfg.Landlock != nil {
		if err := landlock(cfg.Landlock); err != nil {
			return failed(IsolationLandlock, "restricting", err)
		}
	}
	return failed(IsolationSeccomp, "installing it", filter(cfg.Seccomp))
}

// Bits of PR_SET_SECUREBITS, each with the lock: user ID 0 has no special meaning, changes of user IDs have no effect
// on capabilities, and no capability becomes ambient.
const secureBits = 1<<0 | 1<<1 | 1<<2 | 1<<3 | 1<<5 | 1<<6 | 1<<7

func dropCapabilities(user ID) error {
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return failed(IsolationCapabilities, "clearing the ambient set", err)
	}
	for c := uintptr(0); c <= 63; c++ {
		err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) { // above the kernel's last capability
			break
		}
		if err != nil {
			return failed(IsolationCapabilities, "emptying the bounding set", err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_SECUREBITS, secureBits, 0, 0, 0); err != nil {
		return failed(IsolationCapabilities, "locking the secure bits", err)
	}
	if err := changeUser(user); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return failed(IsolationCapabilities, "giving them up", unix.Capset(&header, &none[0]))
}

// setUser changes to the owner of files in the sandbox's file systems. The calls only affect this thread, like all of
// the launcher's changes to the process.
func setUser(cfg *Config) error {
	if cfg.DropGroups {
		if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
			return failed(IsolationUser, "giving up groups", e)
		}
	}
	return changeUser(cfg.Owner)
}

func changeUser(id ID) error {
	g, u := uintptr(id.GID), uintptr(id.UID)
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, g, g, g); e != 0 {
		return failed(IsolationUser, "changing the group", e)
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, u, u, u); e != 0 {
		return failed(IsolationUser, "changing the user", e)
	}
	return nil
}

// filter installs the system call filter.
func filter(program []byte) error {
	const size = int(unsafe.Sizeof(unix.SockFilter{}))
	if len(program) == 0 || len(program)%size != 0 {
		return fmt.Errorf("a program of %d bytes", len(program))
	}
	insns := make([]unix.SockFilter, len(program)/size)
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&insns[0])), len(program)), program)
	prog := unix.SockFprog{Len: uint16(len(insns)), Filter: &insns[0]}
	_, _, e := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(insns)
	if e != 0 {
		return e
	}
	return nil
}
