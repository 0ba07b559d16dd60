//go:build linux

package session_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"

	"github.com/workcell-dev/workcell/internal/guest/server"
	"github.com/workcell-dev/workcell/internal/leaktest"
)

// guestEnv turns the test binary into a guest: its value is the work directory, descriptor 3 the attached stream and
// descriptor 4 the listening socket for secondary connections.
const guestEnv = "WORKCELL_TEST_GUEST_WORKDIR"

func TestMain(m *testing.M) {
	if workdir := os.Getenv(guestEnv); workdir != "" {
		if err := serveGuest(workdir); err != nil {
			fmt.Fprintln(os.Stderr, "test guest:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	leaktest.Main(m)
}

// serveGuest is a guest until its attached stream ends.
func serveGuest(workdir string) error {
	stream, socket := os.NewFile(3, "attached"), os.NewFile(4, "secondary")
	attached, err := streamOf(stream)
	if err != nil {
		return err
	}
	listener, err := net.FileListener(socket)
	if err != nil {
		return err
	}
	// Commands must not inherit them.
	if err := errors.Join(stream.Close(), socket.Close()); err != nil {
		return err
	}
	guest, err := server.New(server.Config{Workdir: workdir, ReapAll: true, Path: os.Getenv("PATH"), Log: os.Stderr})
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { _ = guest.ServeConn(conn) }() // ends with its host, one way or another
		}
	}()
	_ = guest.ServeAttach(attached, true) // ends when the engine closes the stream
	return guest.Close()
}

// streamOf returns a socket as a stream with deadlines.
func streamOf(f *os.File) (*net.UnixConn, error) {
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("not a unix socket"), conn.Close())
	}
	return unix, nil
}
