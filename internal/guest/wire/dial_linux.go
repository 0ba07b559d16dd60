package wire

import (
	"errors"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// queueWait is the maximum time of a connection in the queue.
const queueWait = 500 * time.Millisecond

// DialSocket connects to the socket of a guest agent, from the network namespace of this thread. If the connection
// queue is full, it waits, unlike net.Dial. Therefore a command cannot lock hosts out by keeping the queue full. After
// half a second, DialSocket returns EAGAIN.
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
	for err = unix.EINTR; errors.Is(err, unix.EINTR); { // interrupted by a signal of the Go runtime
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: name})
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
