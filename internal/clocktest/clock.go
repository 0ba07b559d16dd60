//go:build linux

// Package clocktest sets the clock of a test's programs, and nobody else's: theirs is wrong by as much as the test
// wants, at any moment, while the machine's stays right and time passes for both as it does.
//
// Go programs ask the kernel for the time without a system call, which nobody could answer in its place. In a copy of
// the program the names of what they look for are spoiled, so that they make one, and a seccomp filter has the test
// answer it. Only questions for the time of day are answered so. What measures time is as it is where somebody sets a
// machine's clock.
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

// programVariable makes the test binary become a program with a clock of the test. It has the program's path.
const programVariable = "CLOCKTEST_PROGRAM"

// listenerFD is where such a process has the socket for its filter's listener.
const listenerFD = 3

// Clock is what the programs of a test have for one. Its methods may be called concurrently.
type Clock struct {
	t       testing.TB
	program string       // the copy
	offset  atomic.Int64 // nanoseconds
}

// New copies a Go program that is to have a clock of its own.
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
	// A process that is forked meanwhile would have the program open for writing, and until it becomes another nobody can
	// run it.
	syscall.ForkLock.RLock()
	err = os.WriteFile(c.program, text, 0o700)
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Set makes the clock differ from the machine's.
func (c *Clock) Set(offset time.Duration) { c.offset.Store(int64(offset)) }

// Under changes a command that was not started yet, so that it runs the copy, and it and its children have this clock
// until the end of the test. The test binary's TestMain must call Main first.
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

// serve answers one process and its children until they or the test are over.
func (c *Clock) serve(conn *net.UnixConn, stop *os.File) error {
	oob := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), oob)
	if err != nil {
		return err
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		return errors.Join(errors.New("the process has no filter"), err) // it was never started, or it said why
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
		case polled[0].Revents != 0 || polled[1].Revents != 0: // nobody has the filter any more, or nobody cares
			return nil
		}
	}
}

// now returns the time of a clock of the kernel's, changed by the offset.
func (c *Clock) now(id int32) (unix.Timespec, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(id, &ts); err != nil {
		return ts, err
	}
	return unix.NsecToTimespec(ts.Nano() + c.offset.Load()), nil
}
