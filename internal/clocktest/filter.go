//go:build linux

package clocktest

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Main becomes the program if this process was started for one. Otherwise, it returns.
func Main() {
	program := os.Getenv(programVariable)
	if program == "" {
		return
	}
	environ := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, programVariable+"=") })
	fmt.Fprintln(os.Stderr, "clocktest:", become(program, environ))
	os.Exit(1)
}

// become installs the filter for this thread and runs the program in it. become returns only if it fails.
func become(program string, environ []string) error {
	runtime.LockOSThread()
	if os.Geteuid() != 0 { // the kernel requires root or no_new_privs
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return err
		}
	}
	l, err := install()
	if err != nil {
		return fmt.Errorf("this kernel takes no filter with a listener: %w", err)
	}
	if err := unix.Sendmsg(listenerFD, []byte{0}, unix.UnixRights(int(l)), nil, 0); err != nil {
		return err
	}
	unix.CloseOnExec(listenerFD)
	l.close()
	return syscall.Exec(program, os.Args, environ) //nolint:gosec // a test's own program
}

// install installs a filter that sends calls for the time to a listener.
func install() (listener, error) {
	insns, err := bpf.Assemble(question())
	if err != nil {
		return 0, err
	}
	filter := make([]unix.SockFilter, len(insns))
	for i, in := range insns {
		filter[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	program := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	// A signal must not interrupt a call that is being answered. Otherwise, the answer could overwrite memory that is used
	// for something else by then. Kernels before 5.19 do not support this flag.
	for _, flags := range []uintptr{unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, 0} {
		fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER,
			flags|unix.SECCOMP_FILTER_FLAG_NEW_LISTENER, uintptr(unsafe.Pointer(&program)))
		if errno == 0 {
			return listener(fd), nil
		}
		if err = errno; errno != unix.EINVAL {
			break
		}
	}
	runtime.KeepAlive(filter)
	return 0, err
}

// question returns the filter. The offsets are those of struct seccomp_data. Both architectures store the low half of a
// number first.
func question() []bpf.Instruction {
	arch := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: arch, SkipTrue: 5},
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.SYS_CLOCK_GETTIME, SkipTrue: 3},
		bpf.LoadAbsolute{Off: 16, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.CLOCK_REALTIME, SkipTrue: 2},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: unix.CLOCK_REALTIME_COARSE, SkipTrue: 1},
		bpf.RetConstant{Val: unix.SECCOMP_RET_ALLOW},
		bpf.RetConstant{Val: unix.SECCOMP_RET_USER_NOTIF},
	}
}

// listener is the file descriptor of the listener of a filter.
type listener int

func (l listener) close() { _ = unix.Close(int(l)) } // nothing was written to it

// asked is struct seccomp_notif.
type asked struct {
	id          uint64
	pid, _      uint32
	call        int32
	arch        uint32
	instruction uint64
	args        [6]uint64
}

// answered is struct seccomp_notif_resp.
type answered struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

// answer receives and answers one call. The calling process can end at any time, which is not an error.
func (l listener) answer(now func(clock int32) (unix.Timespec, error)) error {
	var q asked
	if err := l.control(unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&q)); err != nil {
		return gone(err)
	}
	ts, err := now(int32(q.args[0]))
	if err != nil {
		return err
	}
	a := answered{id: q.id}
	const size = int(unsafe.Sizeof(ts))
	local := []unix.Iovec{{Base: (*byte)(unsafe.Pointer(&ts)), Len: uint64(size)}}
	remote := []unix.RemoteIovec{{Base: uintptr(q.args[1]), Len: size}}
	if err := l.control(unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&q.id)); err != nil {
		// If the process has ended, another process can have the same PID.
		return gone(err)
	}
	if n, err := unix.ProcessVMWritev(int(q.pid), local, remote, 0); err != nil || n != size {
		if gone(err) != nil {
			return fmt.Errorf("writing the answer: %w", err)
		}
		a.errno = -int32(unix.EFAULT) // the address for the answer is not mapped
	}
	return gone(l.control(unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&a)))
}

func (l listener) control(request uintptr, arg unsafe.Pointer) error {
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(l), request, uintptr(arg))
		switch errno {
		case 0:
			return nil
		case unix.EINTR:
			continue
		}
		return errno
	}
}

// gone returns nil for the errors of ended processes, and err for other errors.
func gone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EFAULT) {
		return nil
	}
	return err
}
