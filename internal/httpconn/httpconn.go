// Package httpconn serves HTTP on a connection that is there already, such as one from inside a sandbox.
package httpconn

import (
	"io"
	"net"
	"net/http"
	"sync"
)

// Serve answers the requests on a connection, and returns when it has been closed: by the server, or by the handler that hijacked
// it. The server must be for this connection alone.
func Serve(srv *http.Server, c net.Conn) {
	conn := &closing{Conn: c, closed: make(chan struct{})}
	_ = srv.Serve(&listener{conn: conn}) // ends when the one connection was taken
	<-conn.closed
}

// closing says when it is closed.
type closing struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

func (c *closing) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() { close(c.closed) })
	return err
}

// listener is what one connection comes from.
type listener struct {
	conn net.Conn
	done bool
}

func (l *listener) Accept() (net.Conn, error) {
	if l.done {
		return nil, io.EOF
	}
	l.done = true
	return l.conn, nil
}

func (l *listener) Close() error   { return nil }
func (l *listener) Addr() net.Addr { return l.conn.LocalAddr() }
