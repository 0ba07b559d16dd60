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
	// maxConns bounds the hosts that are connected.
	maxConns = 32
	// acceptPause is how long accepting rests after it failed.
	acceptPause = 50 * time.Millisecond
	// startPatience is how long a guest may take to listen, once its engine can run a bridge beside it.
	startPatience = 10 * time.Second
)

func socketAddr() *net.UnixAddr { return &net.UnixAddr{Name: wire.SocketName, Net: "unix"} }

// ServeSocket serves hosts that come through Connect, or from the machine into the sandbox's network namespace, each as
// a session of its own, until the listener fails. The guest must be the init of its pid namespace.
func (s *Server) ServeSocket() error {
	ln, err := net.ListenUnix("unix", socketAddr())
	if err != nil {
		return err
	}
	return s.serveListener(ln, checkPeer)
}

// ServeListener serves the hosts that connect to an inherited listening socket, each as a session of its own, until it
// fails. The socket's name lies outside of the sandbox; a process of the sandbox that gets there all the same is
// refused.
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

func (s *Server) serveListener(ln *net.UnixListener, check func(*net.UnixConn) error) error {
	defer ln.Close()
	slots := make(chan struct{}, maxConns)
	for {
		conn, err := ln.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return err
			}
			time.Sleep(acceptPause) // no memory or descriptors for now: without the listener nobody would get in any more
			continue
		}
		if err := check(conn); err != nil {
			s.logf("connection refused: %v", err)
			_ = conn.Close() // nobody is there
			continue
		}
		select {
		case slots <- struct{}{}:
		default:
			_ = conn.Close() // full
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

// checkPeer accepts what runs outside of the guest's pid namespace, and what an engine's exec started: in the namespace
// such a process has no parent, which nothing that descends from a command can have, because orphans become the guest's
// children.
func checkPeer(conn *net.UnixConn) error {
	cred, err := peerOf(conn)
	if err != nil {
		return err
	}
	if cred.Pid == 0 {
		return nil // outside
	}
	if ppid, ok := proc.Parent(int(cred.Pid)); !ok || ppid != 0 || peerGone(conn) { // a later process may have the pid
		return fmt.Errorf("process %d was not started by the engine", cred.Pid)
	}
	return nil
}

// checkOutsider accepts what runs outside of the guest's pid namespace: such a process has no pid in it.
func checkOutsider(conn *net.UnixConn) error {
	cred, err := peerOf(conn)
	if err != nil {
		return err
	}
	if cred.Pid != 0 && os.Getpid() == 1 {
		return fmt.Errorf("process %d belongs to the sandbox", cred.Pid)
	}
	return nil
}

func peerOf(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var cerr error
	err = raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	return cred, errors.Join(err, cerr)
}

// peerGone reports whether the peer was reaped: then another process may have its pid. Linux before 6.5 cannot tell.
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

// Dial connects to the guest of this sandbox, its init.
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
	cred, err := peerOf(conn)
	if err == nil && cred.Pid != 1 {
		err = errors.New("another process answers instead of the guest agent")
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}
