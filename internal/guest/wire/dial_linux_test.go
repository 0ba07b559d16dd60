package wire

import (
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestDialSocketWaits verifies that a connection waits if the queue is full, and returns EAGAIN if it stays full.
func TestDialSocketWaits(t *testing.T) {
	name := filepath.Join(t.TempDir(), "s")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: name}), unix.Listen(fd, 0))
	}
	checktest.Must(t, err)
	defer unix.Close(fd) //nolint:errcheck // at the end
	dial := func() error {
		conn, err := DialSocket(name)
		if err == nil {
			t.Cleanup(func() { _ = conn.Close() })
		}
		return err
	}
	checktest.Must(t, dial())
	if err := dial(); !errors.Is(err, unix.EAGAIN) {
		t.Errorf("a full queue: %v", err)
	}
	if conn, err := net.Dial("unix", name); err == nil {
		t.Errorf("the queue has room for %v", conn.LocalAddr())
	}
	go func() {
		time.Sleep(queueWait / 10) // without the sleep, the connection would not wait
		if nfd, _, err := unix.Accept(fd); err == nil {
			_ = unix.Close(nfd)
		}
	}()
	if err := dial(); err != nil {
		t.Errorf("after the queue has room: %v", err)
	}
}
