package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// errSpent ends connections of a sandbox at the transfer limit.
var errSpent = errors.New("transfer limit of the sandbox reached")

// metered is a connection to a host with the limits of a sandbox.
type metered struct {
	net.Conn
	d       *door
	in, out atomic.Int64
	spent   atomic.Bool // closed because of the transfer limit
	over    func()      // called before the peers notice the end
	idle    *time.Timer
	stop    func()
}

// newMetered applies the limits to a connection. The connection is closed when ctx is done. It is also closed when the
// sandbox reaches the transfer limit, after a call to over.
func newMetered(ctx context.Context, d *door, conn net.Conn, over func()) *metered {
	l := d.g.o.Limits
	m := &metered{Conn: conn, d: d, over: over}
	end := func() { _ = conn.Close() } // unblocks pending reads and writes
	m.idle = time.AfterFunc(l.Idle, end)
	life := time.AfterFunc(l.Time, end)
	unwatch := context.AfterFunc(ctx, end)
	m.stop = sync.OnceFunc(func() {
		m.idle.Stop()
		life.Stop()
		unwatch()
	})
	return m
}

func (m *metered) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	m.in.Add(int64(n))
	return m.passed(n, err)
}

func (m *metered) Write(b []byte) (int, error) {
	m.out.Add(int64(len(b))) // count before the host can answer
	n, err := m.Conn.Write(b)
	m.out.Add(int64(n - len(b)))
	return m.passed(n, err)
}

// passed counts transferred bytes.
func (m *metered) passed(n int, err error) (int, error) {
	if n <= 0 {
		return n, err
	}
	m.idle.Reset(m.d.g.o.Limits.Idle)
	if m.d.bytes.Add(-int64(n)) < 0 {
		if !m.spent.Swap(true) {
			m.over()
		}
		_ = m.Conn.Close()
		return n, errSpent
	}
	return n, err
}

// CloseWrite closes the direction to the host.
func (m *metered) CloseWrite() error { return closeWrite(m.Conn) }

// Close closes the connection and stops the timers.
func (m *metered) Close() error {
	m.stop()
	return m.Conn.Close()
}

func closeWrite(c net.Conn) error {
	if c, ok := c.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return c.Close()
}

// copyTo copies one direction. If it ends without an error, the other direction stays open. Otherwise both connections
// are closed.
func copyTo(to net.Conn, from io.Reader, both ...net.Conn) {
	if _, err := io.Copy(to, from); err == nil && closeWrite(to) == nil {
		return
	}
	for _, c := range both {
		_ = c.Close() // ends the other direction
	}
}
