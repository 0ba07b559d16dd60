package host

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Argv returns the command line of a process of this machine, empty when it has none or has ended.
func Argv(pid int) []string {
	args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return strings.Split(string(args), "\x00")
}

// InCgroup reports whether a process of this machine is in a control group with a name that contains id.
func InCgroup(pid int, id string) bool {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	return err == nil && strings.Contains(string(groups), id)
}

// InNetns runs f on a thread of its own in the network namespace at path.
func InNetns(path string, f func() error) error {
	return OnThread(func() error {
		ns, err := os.Open(path)
		if err != nil {
			return err
		}
		defer ns.Close() //nolint:errcheck // only a handle
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return f()
	})
}

// DialProcess connects to a Unix socket, by its abstract name, in the network namespace of a process of this machine, which
// must be the one that listens: nobody else's, whatever a command or the machine's reuse of process ids put in its place.
// That is ESRCH.
func DialProcess(ctx context.Context, pid int, socket string) (net.Conn, error) {
	var conn net.Conn
	err := InNetns(fmt.Sprintf("/proc/%d/ns/net", pid), func() (err error) {
		var d net.Dialer
		conn, err = d.DialContext(ctx, "unix", socket) // which makes the socket on this thread
		return err
	})
	if err != nil {
		return nil, err
	}
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) {
			if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err != nil || int(cred.Pid) != pid {
				_ = conn.Close()
				conn = nil
			}
		})
	}
	if err == nil && conn == nil {
		err = unix.ESRCH
	}
	return conn, err
}
