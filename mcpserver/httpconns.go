package mcpserver

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"
)

// loopbackClient stands for all of this machine's own addresses: whoever has one has them all.
const loopbackClient = "loopback"

// ipv6Client is what one client has of the addresses of IPv6 at least.
const ipv6Client = 64

// clientOf gives what counts as one client of an address "host:port".
func clientOf(hostport string) string {
	at, err := netip.ParseAddrPort(hostport)
	if err != nil {
		return hostport
	}
	ip := at.Addr().Unmap().WithZone("")
	switch {
	case ip.IsLoopback():
		return loopbackClient
	case ip.Is4():
		return ip.String()
	}
	return netip.PrefixFrom(ip, ipv6Client).Masked().String()
}

// cappedListener bounds the open connections, of all clients and of each address. One more is told so and closed: left
// in the kernel's queue it would wait, and so would the health check.
type cappedListener struct {
	net.Listener
	most, each int
	plain      bool // refusals can be read: connections are not for TLS

	mu    sync.Mutex // guards the fields below
	total int
	taken map[string]int
}

func newCappedListener(l net.Listener, most, each int, plain bool) *cappedListener {
	return &cappedListener{Listener: l, most: most, each: each, plain: plain, taken: map[string]int{}}
}

// Accept gives the next connection that has a place.
func (l *cappedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client := clientOf(conn.RemoteAddr().String())
		if l.enter(client) {
			return &cappedConn{Conn: conn, leave: sync.OnceFunc(func() { l.leave(client) })}, nil
		}
		l.refuse(conn)
	}
}

func (l *cappedListener) enter(client string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total >= l.most || l.taken[client] >= l.each {
		return false
	}
	l.total++
	l.taken[client]++
	return true
}

func (l *cappedListener) leave(client string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.taken[client]--; l.taken[client] == 0 {
		delete(l.taken, client)
	}
}

// refusalTimeout bounds the sending of a refusal.
const refusalTimeout = time.Second

// refuse answers a connection that is one too many. Its fresh socket buffer takes the few bytes without waiting.
func (l *cappedListener) refuse(conn net.Conn) {
	if l.plain {
		_ = conn.SetDeadline(time.Now().Add(refusalTimeout)) // best effort, like the rest of it
		_, _ = conn.Write([]byte("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
	}
	conn.Close() // nothing to lose
}

type cappedConn struct {
	net.Conn
	leave func()
}

// Close gives the place back.
func (c *cappedConn) Close() error {
	err := c.Conn.Close()
	c.leave()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
