package wire

import (
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// SocketName is the address of a guest agent's socket, in the abstract namespace of the sandbox's network. A command
// cannot remove or replace it like a file, and processes outside of the namespace cannot reach it.
const SocketName = "@workcell-guest"

// queueWait is how long DialSocket waits for room in the queue of connections.
const queueWait = 500 * time.Millisecond

// DialSocket connects to the socket of a guest agent, from the network namespace of this thread. If the thread has its
// own namespace, the caller must lock the goroutine to the thread. If the connection queue is full, DialSocket waits,
// unlike net.Dial. Therefore a host gets a turn even if a command fills the queue. After half a second without a signal
// to the thread, DialSocket returns EAGAIN.
func DialSocket(name string) (*net.UnixConn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close() //nolint:errcheck // the connection uses a copy of the descriptor
	wait := unix.NsecToTimeval(queueWait.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	for {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: name})
		if !errors.Is(err, unix.EINTR) { // EINTR: interrupted by a signal of the Go runtime; the wait restarts
			break
		}
	}
	if err != nil {
		return nil, os.NewSyscallError("connect", err)
	}
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil // a Unix socket always becomes this type
}

// PeerPID returns the process ID of a connection's other end. For a client, it is the process that called listen. It is
// 0 if the process is outside of this PID namespace.
func PeerPID(conn *net.UnixConn) (pid int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var sockErr error
	err = raw.Control(func(fd uintptr) {
		cred, sockErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, sockErr); err != nil {
		return 0, err
	}
	return int(cred.Pid), nil
}
