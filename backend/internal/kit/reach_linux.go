package kit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/host"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

const (
	// guestWait is how long a guest that was just started may take to listen.
	guestWait = 30 * time.Second
	// pollFirst and pollLongest are the pauses between two looks at a guest that was just started.
	pollFirst, pollLongest = time.Millisecond, 50 * time.Millisecond
)

// ReachGuest connects to the socket of a container's guest from this machine, through the network namespace of its
// process pid, and waits for one that was just started. The process's control groups must name the container by group.
// running returns the process's id anew, and fails when the container does not run any more.
//
// The error is that of running, the context's, or backend.ErrLost when running returns another process. It is
// ErrElsewhere where the process is not one of this machine or may not be entered, and also where its socket cannot be
// had although the container runs: then its commands keep the socket busy, and only the engine has a way in that does
// not lead through it.
func ReachGuest(ctx context.Context, group string, pid int, running func(context.Context) (int, error)) (io.ReadWriteCloser, error) {
	began := time.Now()
	for wait := pollFirst; ; wait = min(2*wait, pollLongest) {
		conn, err := dialGuest(pid, group)
		switch {
		case err == nil:
			return host.NewStream(conn, conn, conn.Close), nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, ErrNoProcess):
			return nil, ErrNoProcess
		// These pass: the guest was just started, or has just ended and the engine does not know yet.
		case !IsAny(err, unix.ECONNREFUSED, unix.ENOENT, unix.ESRCH) || time.Since(began) > guestWait:
			return nil, ErrElsewhere
		}
		if now, err := running(ctx); err != nil {
			return nil, err
		} else if now != pid {
			return nil, fmt.Errorf("the guest agent exited: %w", backend.ErrLost)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
		}
	}
}

// dialGuest connects to the socket of the guest that is a process of this machine: nobody else's, whatever a command or
// the machine's reuse of process ids put in its place.
func dialGuest(pid int, group string) (net.Conn, error) {
	g, err := findGuest(pid, group)
	if err != nil {
		return nil, err
	}
	defer g.proc.Close() //nolint:errcheck // only a handle
	conn, err := g.dial()
	if err != nil {
		return nil, err
	}
	return conn, nil
}

// guestProcess is a guest as a process of this machine. Its open directory in /proc is that of one process: nothing is
// found in it once that has ended, also when another got its id.
type guestProcess struct {
	pid   int
	group string
	proc  *os.File
}

// findGuest returns the guest that is the process pid. See check for its errors.
func findGuest(pid int, group string) (*guestProcess, error) {
	proc, err := os.Open(fmt.Sprintf("/proc/%d", pid))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoProcess
	} else if err != nil {
		return nil, ErrElsewhere
	}
	g := &guestProcess{pid: pid, group: group, proc: proc}
	if err := g.check(); err != nil {
		_ = proc.Close() // only a handle
		return nil, err
	}
	return g, nil
}

// path names a file of the process's directory.
func (g *guestProcess) path(name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", g.proc.Fd(), name)
}

// dial connects to the guest's socket.
func (g *guestProcess) dial() (conn *net.UnixConn, err error) {
	err = host.InNetns(g.path("ns/net"), func() (err error) {
		conn, err = wire.DialSocket(wire.SocketName) // which makes the socket on this thread
		return err
	})
	switch {
	case errors.Is(err, os.ErrPermission):
		return nil, ErrElsewhere
	case err != nil:
		return nil, err
	}
	if err := g.answers(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// answers returns nil when the other end of a connection is the guest's, and it still runs: the id that the kernel
// knows the listener by was that of this process all the time.
func (g *guestProcess) answers(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, cerr); err != nil {
		return err
	}
	if int(cred.Pid) != g.pid {
		return unix.ESRCH
	}
	return g.check()
}

// check returns nil when the process is the guest of the container, ESRCH when it still is the runtime that starts it,
// and ErrElsewhere when it is another, or has ended: an engine that counts processes in a namespace of its own names
// others.
func (g *guestProcess) check() error {
	in, err := os.ReadFile(g.path("cgroup"))
	args, argsErr := os.ReadFile(g.path("cmdline"))
	argv := strings.Split(string(args), "\x00")
	switch {
	case err != nil || argsErr != nil || !bytes.Contains(in, []byte(g.group)):
		return ErrElsewhere
	case argv[0] == embed.Path:
		return nil
	case len(argv) > 1 && argv[1] == "init" && (argv[0] == "/proc/self/exe" || path.Base(argv[0]) == "runc"):
		return unix.ESRCH
	}
	return ErrElsewhere
}
