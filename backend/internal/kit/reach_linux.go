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
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/guest/embed"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

const (
	// guestWait is the maximum time for a new guest agent to start listening.
	guestWait = 30 * time.Second
	// pollFirst and pollLongest are the shortest and the longest pause between two attempts to reach a new guest agent.
	pollFirst, pollLongest = time.Millisecond, 50 * time.Millisecond
)

// ReachGuest connects to the socket of a container's guest agent directly from this host. It enters the network
// namespace of the process pid, and waits if the guest agent was just started. The control groups of the process must
// contain the container's group. running returns the current process ID, or an error if the container has stopped.
//
// If running fails or ctx ends, ReachGuest returns this error. If running returns another process ID, ReachGuest
// returns backend.ErrLost. If the process does not exist on this host or this process may not enter it, ReachGuest
// returns ErrElsewhere. It also returns ErrElsewhere if the container is running but the socket is not available. In
// this case, the container's commands keep the socket busy, and only the engine can reach the guest agent without the
// socket.
func ReachGuest(
	ctx context.Context, group string, pid int, running func(context.Context) (int, error),
) (io.ReadWriteCloser, error) {
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
		// These errors are temporary: the guest agent was just started, or it just exited and the engine does not know this
		// yet.
		case !host.IsAny(err, unix.ECONNREFUSED, unix.ENOENT, unix.ESRCH) || time.Since(began) > guestWait:
			return nil, ErrElsewhere
		}
		if now, err := running(ctx); err != nil {
			return nil, err
		} else if now != pid {
			return nil, fmt.Errorf("the guest agent exited: %w", backend.ErrLost)
		}
		if !bound.Pause(ctx, wait) {
			return nil, ctx.Err()
		}
	}
}

// dialGuest connects to the guest agent's socket in the process pid. It refuses the socket of any other process, for
// example after a command took over the address or the host reused the process ID.
func dialGuest(pid int, group string) (net.Conn, error) {
	g, err := findGuest(pid, group)
	if err != nil {
		return nil, err
	}
	defer g.proc.Close() //nolint:errcheck // only a handle
	return g.dial()
}

// guestProcess is a guest agent as a process of this host. The open directory proc refers to one process. After that
// process exits, reads from the directory fail, even if another process gets the same ID.
type guestProcess struct {
	pid   int
	group string
	proc  *os.File
}

// findGuest returns the guest agent with the process ID pid. See check for the errors.
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

// path returns the path of a file in the process's /proc directory.
func (g *guestProcess) path(name string) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", g.proc.Fd(), name)
}

// dial connects to the guest's socket.
func (g *guestProcess) dial() (net.Conn, error) {
	var conn *net.UnixConn
	err := host.InNetns(g.path("ns/net"), func() (err error) {
		conn, err = wire.DialSocket(wire.SocketName) // DialSocket creates the socket on this thread, in the network namespace
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

// answers returns nil if the guest agent is the other end of the connection and is still running. The kernel records
// the process ID of the listener, and this ID belonged to the guest agent the whole time.
func (g *guestProcess) answers(conn *net.UnixConn) error {
	pid, err := wire.PeerPID(conn)
	if err == nil && pid != g.pid {
		err = unix.ESRCH
	}
	if err != nil {
		return err
	}
	return g.check()
}

// check returns nil if the process is the container's guest agent. It returns ESRCH if the process is still the OCI
// runtime, which then starts the guest agent. It returns ErrElsewhere if the process has exited or is a different
// process. An engine in another process namespace reports IDs of different processes on this host.
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
