package server

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/proc"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

const (
	// maxConns is the maximum number of connected hosts.
	maxConns = 32
	// acceptPause is the pause after a failed accept.
	acceptPause = 50 * time.Millisecond
	// startPatience is the maximum time until a guest agent listens, after the engine can run a bridge in the sandbox.
	startPatience = 10 * time.Second
)

// ServeSocket serves hosts connecting through Connect or from the host into the sandbox's network namespace. Each host
// has a separate session. ServeSocket returns when the listener fails. The guest agent must be the init process of the
// PID namespace.
func (s *Server) ServeSocket() error {
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: wire.SocketName, Net: "unix"})
	if err != nil {
		return err
	}
	return s.serveListener(ln, checkPeer)
}

// ServeListener serves hosts connecting to an inherited listening socket. Each host has a separate session.
// ServeListener returns when the socket fails. The socket's name is outside of the sandbox. If a process of the sandbox
// connects anyway, the connection is refused.
func (s *Server) ServeListener(f *os.File) error {
	ln, err := net.FileListener(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	unixLn, ok := ln.(*net.UnixListener)
	if !ok {
		return errors.Join(errors.New("the listener is no Unix socket"), ln.Close())
	}
	unixLn.SetUnlinkOnClose(false)
	return s.serveListener(unixLn, checkOutsider)
}

// serveListener serves connections of peers accepted by check, which gets the peer's process ID.
func (s *Server) serveListener(ln *net.UnixListener, check func(conn *net.UnixConn, pid int) error) error {
	defer ln.Close()
	slots := make(chan struct{}, maxConns)
	for {
		conn, err := ln.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			time.Sleep(acceptPause) // temporarily no memory or descriptors
			continue
		}
		pid, err := wire.PeerPID(conn)
		if err == nil {
			err = check(conn, pid)
		}
		if err != nil {
			s.logf("connection refused: %v", err)
			_ = conn.Close() // the peer is not a host
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			_ = conn.Close() // too many hosts
			continue
		}
		go func() {
			defer func() { <-slots }()
			defer s.guard("a connection")
			if err := s.ServeConn(conn); err != nil && !errors.Is(err, io.EOF) {
				s.logf("a connection ended: %v", err)
			}
		}()
	}
}

// checkPeer accepts processes outside of the guest agent's PID namespace, and processes started by an engine's exec.
// The latter have no parent in the namespace. Descendants of a command always have a parent, because orphans become
// children of the guest agent.
func checkPeer(conn *net.UnixConn, pid int) error {
	if pid == 0 {
		return nil // outside of the namespace
	}
	if ppid, ok := proc.Parent(pid); !ok || ppid != 0 || peerGone(conn) { // a later process may have the same ID
		return fmt.Errorf("process %d was not started by the engine", pid)
	}
	return nil
}

// checkOutsider accepts processes outside of the guest agent's PID namespace. Such a process has no ID in the
// namespace.
func checkOutsider(_ *net.UnixConn, pid int) error {
	if pid != 0 && os.Getpid() == 1 {
		return fmt.Errorf("process %d belongs to the sandbox", pid)
	}
	return nil
}

// peerGone reports whether the peer was reaped. Another process may then have the same ID. Linux before 6.5 cannot
// detect this.
func peerGone(conn *net.UnixConn) (gone bool) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		pidfd, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		if err == nil {
			err = unix.PidfdSendSignal(pidfd, 0, nil, 0)
			_ = unix.Close(pidfd)
		}
		gone = errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL)
	})
	return gone || err != nil
}

// Dial connects to the guest agent of this sandbox, which is the init process.
func Dial() (*net.UnixConn, error) {
	var conn *net.UnixConn
	for deadline := time.Now().Add(startPatience); ; time.Sleep(time.Millisecond) {
		var err error
		if conn, err = wire.DialSocket(wire.SocketName); err == nil {
			break
		} else if !errors.Is(err, unix.ECONNREFUSED) && !errors.Is(err, unix.EAGAIN) || time.Now().After(deadline) {
			return nil, err
		}
	}
	pid, err := wire.PeerPID(conn)
	if err == nil && pid != 1 {
		err = errors.New("another process answers instead of the guest agent")
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}
