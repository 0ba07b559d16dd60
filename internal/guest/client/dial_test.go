//go:build linux

package client_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// port listens like a program in the sandbox and serves each connection with handle, until the end of the test.
func port(t testing.TB, handle func(*net.TCPConn)) string {
	t.Helper()
	ln, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	must(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := ln.AcceptTCP()
			if err != nil {
				return
			}
			serving.Go(func() { defer conn.Close(); handle(conn) })
		}
	})
	t.Cleanup(func() { _ = ln.Close(); serving.Wait() })
	return ln.Addr().String()
}

func dialPort(t testing.TB, c *client.Conn, address string) *client.Dialed {
	t.Helper()
	d, err := c.Dial(testContext(t), wire.DialRequest{Address: address})
	must(t, err)
	t.Cleanup(func() { _ = d.Close() })
	return d
}

// TestDialHalfClose verifies that each direction can be closed separately and earlier data is delivered.
func TestDialHalfClose(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	address := port(t, func(conn *net.TCPConn) {
		if _, err := io.WriteString(conn, "hello "); err != nil {
			t.Error(err)
		}
		got, err := io.ReadAll(conn) // reads one direction to the end; the other stays open
		if err != nil {
			t.Error(err)
		}
		if _, err := conn.Write(got); err != nil {
			t.Error(err)
		}
	})
	d := dialPort(t, c, strings.Replace(address, "127.0.0.1", "localhost", 1))
	if d.RemoteAddr().String() != address || d.LocalAddr().Network() != "tcp" {
		t.Errorf("from %v to %v", d.LocalAddr(), d.RemoteAddr())
	}
	must(t, second(d.Write(data)))
	must(t, d.CloseWrite())
	if got, err := io.ReadAll(d); err != nil || string(got) != "hello "+string(data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := d.Write(data); !errors.Is(err, net.ErrClosed) {
		t.Errorf("writing behind the end: %v", err)
	}
}

// TestDialReset verifies that a reset by the server or by the host is not reported as a regular end.
func TestDialReset(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	d := dialPort(t, c, port(t, func(conn *net.TCPConn) {
		_, _ = io.ReadFull(conn, make([]byte, 5))
		_ = conn.SetLinger(0)
	}))
	_, _ = io.WriteString(d, "hello")
	if got, err := io.ReadAll(d); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a reset of the server: %q, %v", got, err)
	}

	ended := make(chan error, 1)
	d = dialPort(t, c, port(t, func(conn *net.TCPConn) {
		_, err := io.ReadAll(conn)
		ended <- err
	}))
	_, _ = io.WriteString(d, "half of what")
	_ = d.SetLinger(0)
	_ = d.Close()
	if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a reset of the host: %v", err)
	}
	d, conn := heldPort(t, c)
	_ = c.Close()
	if got, err := io.ReadAll(conn); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a closed host: %q, %v", got, err)
	}
	if _, err := d.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("behind the connection's end: %v", err)
	}
}

// heldPort returns both ends of a connection.
func heldPort(t testing.TB, c *client.Conn) (*client.Dialed, *net.TCPConn) {
	t.Helper()
	conns, over := make(chan *net.TCPConn), make(chan struct{})
	d := dialPort(t, c, port(t, func(conn *net.TCPConn) { conns <- conn; <-over }))
	t.Cleanup(func() { close(over) })
	return d, <-conns
}

// TestDialCloseDelivers verifies that Close delivers pending data, even to a slow server.
func TestDialCloseDelivers(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	d, conn := heldPort(t, c)
	must(t, second(d.Write(make([]byte, 900<<10))))
	_ = d.Close()
	if got, err := io.ReadAll(conn); err != nil || len(got) != 900<<10 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// TestDialClosed verifies that a Read after Close returns neither earlier data nor the end of the stream.
func TestDialClosed(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	d := dialPort(t, c, port(t, func(conn *net.TCPConn) {
		if _, err := io.WriteString(conn, "xy"); err != nil {
			t.Error(err)
		}
	}))
	must(t, second(io.ReadFull(d, make([]byte, 1))))
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if n, err := d.Read(make([]byte, 1)); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("Read = %d, %v after Close", n, err)
	}
}

// TestDialRefuses verifies that Dial only reaches loopback addresses, in any notation.
func TestDialRefuses(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for address, want := range map[string]wire.Code{
		"10.0.0.1:80": wire.CodePermission, "0.0.0.0:80": wire.CodePermission, "[::]:80": wire.CodePermission,
		"169.254.169.254:80": wire.CodePermission, "[::ffff:10.0.0.1]:80": wire.CodePermission, "[fe80::1%lo]:80": wire.CodePermission,
		"[::1%eth0]:80":  wire.CodePermission,
		"example.com:80": wire.CodeInvalid, "": wire.CodeInvalid, "127.0.0.1": wire.CodeInvalid, "127.0.0.1:0": wire.CodeInvalid,
		"127.0.0.1:65536": wire.CodeInvalid, "127.0.0.1:http": wire.CodeInvalid, "127.1:80": wire.CodeInvalid, "0x7f.0.0.1:80": wire.CodeInvalid,
		"LOCALHOST:80": wire.CodeInvalid, "../127.0.0.1:80": wire.CodeInvalid, "127.0.0.1:80\x00": wire.CodeInvalid,
	} {
		fails(t, address, second(c.Dial(testContext(t), wire.DialRequest{Address: address})), want)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	_ = ln.Close()
	fails(t, "a port that nothing listens on",
		second(c.Dial(testContext(t), wire.DialRequest{Address: ln.Addr().String()})), wire.CodeNotFound)
}

// TestDialCancelled verifies that a caller can give up connecting to an unresponsive server.
func TestDialCancelled(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	must(t, errors.Join(unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}), unix.Listen(fd, 0)))
	sa, err := unix.Getsockname(fd)
	must(t, err)
	full := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: sa.(*unix.SockaddrInet4).Port}).String()
	dialPort(t, c, full) // fills the server's queue
	ctx, cancel := context.WithCancel(testContext(t))
	timer := time.AfterFunc(200*time.Millisecond, cancel)
	defer timer.Stop()
	if _, err := c.Dial(ctx, wire.DialRequest{Address: full}); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	mustRun(t, c, sh("true"))
}

// TestDialNobodyReads verifies that a server that stops reading only blocks its own connection, and the connection is
// reset after the host has closed it.
func TestDialNobodyReads(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	d, conn := heldPort(t, c)
	blocked := make(chan error, 1)
	var written int
	go func() {
		for {
			n, err := d.Write(make([]byte, 64<<10))
			written += n
			if err != nil {
				blocked <- err
				return
			}
		}
	}()
	for range 20 { // commands and other connections still work
		mustRun(t, c, sh("head -c 100000 /dev/zero"))
		e := dialPort(t, c, port(t, func(conn *net.TCPConn) { _, _ = io.Copy(conn, conn) }))
		must(t, second(io.WriteString(e, "x")))
		must(t, second(io.ReadFull(e, make([]byte, 1))))
	}
	_ = d.Close()
	if err := <-blocked; !errors.Is(err, net.ErrClosed) {
		t.Errorf("a Write that waited: %v", err)
	}
	if written > 64<<20 {
		t.Errorf("%d bytes were written to an unread connection", written)
	}
	raw, err := conn.SyscallConn()
	must(t, err)
	_ = conn.SetReadDeadline(time.Now().Add(3 * time.Minute)) // the multiplexer gives up a closed stream after 30 s
	if err := raw.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, _ := unix.Poll(p, 0)
		return n > 0 && p[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
	}); err != nil {
		t.Errorf("the connection of a host that left is still there: %v", err)
	}
}

// TestDialCapacity verifies the maximum number of connections, and that closed connections no longer count.
func TestDialCapacity(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	address := port(t, func(conn *net.TCPConn) { _, _ = io.Copy(io.Discard, conn) })
	var open []*client.Dialed
	for range wire.MaxDials {
		open = append(open, dialPort(t, c, address))
	}
	fails(t, "one too many", second(c.Dial(testContext(t), wire.DialRequest{Address: address})), wire.CodeCapacity)
	mustRun(t, c, sh("true"))
	for _, d := range open {
		_ = d.Close()
	}
	for { // the guest agent may not have processed a close yet
		d, err := c.Dial(testContext(t), wire.DialRequest{Address: address})
		if err == nil {
			_ = d.Close()
			return
		}
		if codeOf(err) != wire.CodeCapacity {
			t.Fatal(err)
		}
	}
}
