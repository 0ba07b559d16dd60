// Package httpconn serves HTTP on a connection that is there already, such as one from inside a sandbox.
package httpconn

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Bounds of a connection.
const (
	idleTime  = 2 * time.Minute
	maxHeader = 64 << 10
)

// Serve answers the requests on a connection under ctx, and returns when the connection has been closed: by the server,
// or by the handler that hijacked it. The header of a request must come within headerTime.
func Serve(ctx context.Context, c net.Conn, h http.Handler, headerTime time.Duration) {
	closed, end := context.WithCancel(context.Background())
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		ErrorLog:    slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // what code inside sends wrongly is its own business
		BaseContext: func(net.Listener) context.Context { return ctx },

		DisableGeneralOptionsHandler: true,
	}
	_ = srv.Serve(&listener{conn: &closing{c, end}}) // ends when the one connection was taken
	<-closed.Done()
}

// closing calls a function when it is closed.
type closing struct {
	net.Conn
	end func()
}

func (c *closing) Close() error {
	defer c.end()
	return c.Conn.Close()
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
