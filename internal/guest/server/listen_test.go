//go:build linux

package server_test

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/server"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func listen(t testing.TB, c *client.Conn, name string) *client.Listener {
	t.Helper()
	l, err := c.Listen(t.Context(), wire.ListenRequest{Name: name, MaxConns: 8, WaitMillis: wire.MaxConnWait})
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestListenOfTwoHosts verifies that, of two connected hosts, the last one that listened owns the service. Older
// connections stay open. If the owner disconnects, new connections wait.
func TestListenOfTwoHosts(t *testing.T) {
	s, _ := newServer(t)
	first, second := connect(t, s), connect(t, s)
	before := listen(t, first, "model")
	early := dialed(t, before)
	kept, err := before.Accept(t.Context())
	must(t, err)
	l := listen(t, second, "model")
	if _, err := before.Accept(t.Context()); !errors.Is(err, client.ErrNotListening) {
		t.Errorf("the first host: %v", err)
	}
	if _, err := io.WriteString(early, "hello"); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(kept, make([]byte, 5)); err != nil {
		t.Errorf("a connection from before: %v", err)
	}
	_ = kept.Close()
	conn := dialed(t, l)
	p, err := l.Accept(t.Context())
	must(t, err)
	_ = second.Close()
	if b, err := io.ReadAll(conn); err != nil || len(b) > 0 {
		t.Errorf("the connection of a host that left: %q, %v", b, err)
	}
	_, accepts := l.Accept(t.Context())
	_, reads := io.ReadAll(p)
	if !errors.Is(accepts, client.ErrConnLost) || !errors.Is(reads, client.ErrConnLost) {
		t.Errorf("a host that left: %v, %v", accepts, reads)
	}
	conn = dialed(t, l)
	again := listen(t, first, "model")
	if p, err = again.Accept(t.Context()); err != nil || again.Address() != l.Address() {
		t.Fatalf("%s, %v", again.Address(), err)
	}
	defer p.Close()
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(p, make([]byte, 5)); err != nil {
		t.Error(err)
	}
}

// dialed connects like a command.
func dialed(t testing.TB, l *client.Listener) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", l.Address())
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// FuzzListen verifies that the guest agent answers any data sent as or after listen-v1 or accept-v1, and still serves
// the next request.
func FuzzListen(f *testing.F) {
	request := func(op wire.Op, msg any) []byte {
		b, err := wire.AppendRequest(nil, op, msg)
		if err != nil {
			f.Fatal(err)
		}
		return b
	}
	listens := request(wire.OpListen, wire.ListenRequest{Name: "model", MaxConns: 1, WaitMillis: 1})
	accepts := request(wire.OpAccept, wire.AcceptRequest{Name: "model"})
	f.Add(listens)
	f.Add(accepts)
	f.Add(wire.AppendData(accepts, wire.ChanConn, []byte("early")))
	f.Add(append(listens, accepts...))
	f.Add(request(wire.OpDeadline, wire.DeadlineRequest{ExecID: "x", AddMillis: 1}))
	s, _ := newServer(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		c := connect(t, s)
		l := listen(t, c, "model")
		mux := raw(t, pipe(t, s))
		for range 2 { // the second request follows the state of the first
			st, err := mux.OpenStream()
			must(t, err)
			_, _ = st.Write(b)
			_ = st.Close()
			_, _ = io.Copy(io.Discard, st)
		}
		if _, err := c.Health(t.Context()); err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		l = listen(t, c, "model")
		dialed(t, l)
		p, err := l.Accept(t.Context())
		must(t, err)
		_ = p.Close()
	})
}

// TestPeerGone verifies that a reaped process is not confused with a new process that has the same process ID.
func TestPeerGone(t *testing.T) {
	const to = "WORKCELL_TEST_CONNECT"
	if path := os.Getenv(to); path != "" {
		if _, err := net.Dial("unix", path); err != nil {
			t.Fatal(err)
		}
		os.Exit(0)
	}
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	must(t, err)
	defer ln.Close()
	ask := func() bool {
		conn, err := ln.Accept()
		must(t, err)
		defer conn.Close()
		return server.PeerGone(conn.(*net.UnixConn))
	}
	child := exec.Command(os.Args[0], "-test.run=^TestPeerGone$")
	child.Env = append(os.Environ(), to+"="+ln.Addr().String())
	if out, err := child.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	probe, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	pidfd, err := unix.GetsockoptInt(probe[0], unix.SOL_SOCKET, unix.SO_PEERPIDFD)
	for _, fd := range append(probe[:], pidfd) {
		_ = unix.Close(fd)
	}
	if known := !errors.Is(err, unix.ENOPROTOOPT); ask() != known { // Linux before 6.5
		t.Errorf("a reaped process is gone: %v, want %v", !known, known)
	}
	conn, err := net.Dial("unix", ln.Addr().String())
	must(t, err)
	defer conn.Close()
	if ask() {
		t.Error("a living process is taken for a reaped one")
	}
}
