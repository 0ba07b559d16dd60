// Package httpconn serves HTTP on an existing connection, such as a connection from a sandbox.
package httpconn

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Limits for a connection.
const (
	idleTime  = 2 * time.Minute
	maxHeader = 64 << 10
)

// Serve handles the requests on a connection under ctx. It returns when the server, or a hijacking handler, has closed
// it. The header of a request must arrive within headerTime.
func Serve(ctx context.Context, c net.Conn, h http.Handler, headerTime time.Duration) {
	closed, end := context.WithCancel(context.Background())
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		// Invalid requests from a sandbox are not logged.
		ErrorLog:    slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return ctx },

		DisableGeneralOptionsHandler: true,
	}
	_ = srv.Serve(&listener{conn: &closing{c, end}}) // returns after it has accepted the only connection
	<-closed.Done()
}

// closing is a connection that calls a function when it is closed.
type closing struct {
	net.Conn
	end func()
}

func (c *closing) Close() error {
	defer c.end()
	return c.Conn.Close()
}

// CloseWrite closes the direction to the client for a hijacking handler.
func (c *closing) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Close()
}

// listener is a net.Listener for a single connection.
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
