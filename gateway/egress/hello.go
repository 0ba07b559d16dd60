package egress

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"slices"
)

const (
	// extensionECH is the ClientHello extension with an encrypted host name, or with random data in the same form (RFC
	// 9849).
	extensionECH = 0xfe0d
	// maxHello is the maximum size of a ClientHello, including record headers.
	maxHello = 64 << 10
	// recordHandshake is the first byte of a TLS connection.
	recordHandshake = 0x16
)

// Errors of reading a ClientHello.
var (
	errECH     = errors.New("the ClientHello is encrypted (ECH)")
	errNoHello = errors.New("not a ClientHello")
)

// serverName reads a ClientHello from r. It returns the server name, which may be empty, and all bytes read.
func serverName(r io.Reader) (name string, read []byte, err error) {
	var buf bytes.Buffer
	err = errNoHello
	server := tls.Server(helloConn{from: io.TeeReader(io.LimitReader(r, maxHello), &buf)}, &tls.Config{
		MinVersion: tls.VersionTLS10, //nolint:gosec // nothing is agreed on here
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			name, err = h.ServerName, nil
			if slices.Contains(h.Extensions, extensionECH) {
				err = errECH
			}
			return nil, errNoHello // aborts the handshake
		},
	})
	_ = server.Handshake() // always fails
	return name, buf.Bytes(), err
}

// helloConn is a connection for reading a ClientHello. A handshake without a context calls no other methods.
type helloConn struct {
	net.Conn
	from io.Reader
}

func (c helloConn) Read(b []byte) (int, error) { return c.from.Read(b) }
func (helloConn) Write(b []byte) (int, error)  { return len(b), nil }

// alertDenied is a fatal TLS alert with the reason access_denied.
var alertDenied = []byte{0x15, 3, 3, 0, 2, 2, 49}
