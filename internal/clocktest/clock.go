//go:build linux

// Package clocktest sets the clock for the programs of a test, but not for other programs. Their clock can differ from
// the host's clock by any offset, and the test can change the offset at any time. Time passes at the same rate for
// both.
//
// Go programs read the time without a system call, which cannot be intercepted. Therefore, the package copies the
// program and changes the names of the vDSO functions in the copy. The copy does not find these functions and makes
// system calls. A seccomp filter lets the test answer these calls. Only calls for the time of day are intercepted.
// Clocks that measure durations remain correct, as they do if the clock of a host is set.
package clocktest

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// programVariable makes the test binary become a program with a clock set by the test. The value is the program's path.
const programVariable = "CLOCKTEST_PROGRAM"

// listenerFD is the file descriptor of the socket through which such a process sends the filter's listener.
const listenerFD = 3

// Clock is the clock for the programs of a test. The methods are safe for concurrent use.
type Clock struct {
	t       testing.TB
	program string       // path of the copy
	offset  atomic.Int64 // in nanoseconds
}

// New copies a Go program, to give the copy a separate clock.
func New(t testing.TB, program string) *Clock {
	t.Helper()
	text, err := os.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"__vdso_clock_gettime", "__kernel_clock_gettime"} { // on amd64 and arm64
		text = bytes.ReplaceAll(text, []byte(name), []byte(strings.Replace(name, "clock", "klock", 1)))
	}
	c := &Clock{t: t, program: filepath.Join(t.TempDir(), filepath.Base(program))}
	// Otherwise, a process forked during the write would inherit the open file. Until that process calls exec, the
	// program cannot run.
	syscall.ForkLock.RLock()
	err = os.WriteFile(c.program, text, 0o700)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Set sets the offset between this clock and the host's clock.
func (c *Clock) Set(offset time.Duration) { c.offset.Store(int64(offset)) }

// Under changes a command before its start. The command then runs the copy, and the command and all children have this
// clock until the end of the test. The test binary's TestMain must call Main first.
func (c *Clock) Under(cmd *exec.Cmd) *exec.Cmd {
	c.t.Helper()
	if len(cmd.ExtraFiles) > 0 {
		c.t.Fatal("the command has other files")
	}
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(ends[0]), "ours"), os.NewFile(uintptr(ends[1]), "theirs")
	conn, err := net.FileConn(ours)
	if err = errors.Join(err, ours.Close()); err != nil {
		c.t.Fatal(err)
	}
	served := make(chan error, 1)
	stop, stopped, err := os.Pipe()
	if err != nil {
		c.t.Fatal(err)
	}
	go func() { served <- c.serve(conn.(*net.UnixConn), stop) }()
	c.t.Cleanup(func() {
		err := errors.Join(theirs.Close(), stopped.Close(), <-served, stop.Close(), conn.Close())
		if err != nil {
			c.t.Errorf("a clock: %v", err)
		}
	})
	cmd.Path, cmd.Err, cmd.ExtraFiles = "/proc/self/exe", nil, []*os.File{theirs}
	cmd.Env = append(cmd.Environ(), programVariable+"="+c.program)
	return cmd
}

// serve answers the calls of one process and all children, until these processes or the test end.
func (c *Clock) serve(conn *net.UnixConn, stop *os.File) error {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return errors.Join(errors.New("the process has no filter"), err) // it was not started, or it has printed the reason
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return err
	}
	l := listener(fds[0])
	defer l.close()
	for {
		polled := []unix.PollFd{{Fd: int32(l), Events: unix.POLLIN}, {Fd: int32(stop.Fd()), Events: unix.POLLIN}}
		if _, err := unix.Poll(polled, -1); err != nil && !errors.Is(err, unix.EINTR) {
			return err
		}
		switch {
		case polled[0].Revents&unix.POLLIN != 0:
			if err := l.answer(c.now); err != nil {
				return err
			}
		case polled[0].Revents != 0 || polled[1].Revents != 0: // all processes with the filter have ended, or the test has
			return nil
		}
	}
}

// now returns the time of one of the kernel's clocks, changed by the offset.
func (c *Clock) now(id int32) (unix.Timespec, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		return ts, err
	}
	return unix.NsecToTimespec(ts.Nano() + c.offset.Load()), nil
}
