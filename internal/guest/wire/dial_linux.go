package wire

import (
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// queueWait is how long a connection waits in line.
const queueWait = 500 * time.Millisecond

// DialSocket connects to the socket of a guest, from the network namespace of this thread. Unlike net.Dial it waits in
// line where the queue of connections is full, so that a command that keeps it full does not keep hosts out; it is
// EAGAIN when half a second was not enough.
func DialSocket(name string) (*net.UnixConn, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close() //nolint:errcheck // the connection has a descriptor of its own
	wait := unix.NsecToTimeval(queueWait.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &wait); err != nil {
		return nil, os.NewSyscallError("setsockopt", err)
	}
	for err = unix.EINTR; errors.Is(err, unix.EINTR); { // by a signal of the Go runtime
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: name})
	}
	if err != nil {
		return nil, os.NewSyscallError("connect", err)
	}
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return conn.(*net.UnixConn), nil // what a Unix socket is made into
}
