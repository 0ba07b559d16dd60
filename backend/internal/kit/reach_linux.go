package kit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// guestWait is how long a guest that was just started may take to listen.
const guestWait = 10 * time.Second

// ReachGuest connects to the socket of a container's guest from this machine, through the network namespace of its process
// pid, and waits for one that was just started. The process's control groups must name the container by group. running
// returns the process's id anew, and fails when the container does not run any more.
//
// The error is ErrElsewhere where the process is not one of this machine or may not be entered, that of running, the
// context's, backend.ErrLost or backend.ErrCapacity.
func ReachGuest(ctx context.Context, group string, pid int, running func(context.Context) (int, error)) (io.ReadWriteCloser, error) {
	for began := time.Now(); ; {
		conn, err := dialGuest(ctx, pid, group)
		switch {
		case err == nil:
			return host.NewStream(conn), nil
		case errors.Is(err, ErrElsewhere):
			return nil, ErrElsewhere
		case ctx.Err() != nil:
			return nil, ctx.Err()
		}
		if now, err := running(ctx); err != nil {
			return nil, err
		} else if now != pid {
			return nil, fmt.Errorf("the guest ended: %w", backend.ErrLost)
		}
		switch late := time.Since(began) > guestWait; {
		case late && errors.Is(err, syscall.EAGAIN):
			return nil, fmt.Errorf("the guest takes no more connections: %w", backend.ErrCapacity)
		case late || !passing(err):
			var why syscall.Errno // and no path of the machine
			errors.As(err, &why)
			return nil, fmt.Errorf("the guest cannot be reached: %w: %w", why, backend.ErrLost)
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Millisecond):
		}
	}
}

// passing reports whether a failure to connect soon ends by itself: the guest was just started, or has just ended and the
// engine does not know yet, or commands keep its socket busy.
func passing(err error) bool {
	for _, e := range []error{syscall.EAGAIN, syscall.ECONNREFUSED, syscall.ENOENT, syscall.ESRCH} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// dialGuest connects to the socket of the guest that is a process of this machine: nobody else's, whatever a command or
// the machine's reuse of process ids put in its place.
func dialGuest(ctx context.Context, pid int, group string) (conn net.Conn, err error) {
	if err := isGuest(pid, group); err != nil {
		return nil, err
	}
	err = host.InNetns(fmt.Sprintf("/proc/%d/ns/net", pid), func() (err error) {
		var d net.Dialer
		conn, err = d.DialContext(ctx, "unix", wire.SocketName) // which makes the socket on this thread
		return err
	})
	switch {
	case errors.Is(err, os.ErrPermission):
		return nil, ErrElsewhere
	case err != nil:
		return nil, err
	}
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err == nil {
		var cred *unix.Ucred
		var cerr error
		err = raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
		if err = errors.Join(err, cerr); err == nil && int(cred.Pid) != pid {
			err = unix.ESRCH
		}
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// isGuest returns nil when the process is the guest of the container, ESRCH when it still is the runtime that starts it, and
// ErrElsewhere when it is another: an engine that counts processes in a namespace of its own names others.
func isGuest(pid int, group string) error {
	in, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	args, argsErr := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	argv := strings.Split(string(args), "\x00")
	switch {
	case err != nil || argsErr != nil || !bytes.Contains(in, []byte(group)):
		return ErrElsewhere
	case argv[0] == embed.Path:
		return nil
	case len(argv) > 1 && argv[1] == "init" && (argv[0] == "/proc/self/exe" || path.Base(argv[0]) == "runc"):
		return unix.ESRCH
	}
	return ErrElsewhere
}
