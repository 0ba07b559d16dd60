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
	// extensionECH is the extension of a ClientHello that names the host in secret, or pretends to (RFC 9849).
	extensionECH = 0xfe0d
	// maxHello bounds a ClientHello with the headers of its records.
	maxHello = 64 << 10
	// recordHandshake begins a connection by TLS.
	recordHandshake = 0x16
)

// Failures to read a ClientHello.
var (
	errECH     = errors.New("the ClientHello is encrypted (ECH)")
	errNoHello = errors.New("not a ClientHello")
)

// serverName reads a ClientHello from r. It returns the name in it, which is empty when it has none, and all the bytes
// that were read.
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
			return nil, errNoHello // ends the handshake
		},
	})
	_ = server.Handshake() // never succeeds
	return name, buf.Bytes(), err
}

// helloConn is a connection that a ClientHello comes from and nothing goes to. A handshake without a context calls no
// other methods.
type helloConn struct {
	net.Conn
	from io.Reader
}

func (c helloConn) Read(b []byte) (int, error) { return c.from.Read(b) }
func (helloConn) Write(b []byte) (int, error)  { return len(b), nil }

// alertDenied tells a client of TLS that its connection is refused: access_denied, fatal.
var alertDenied = []byte{0x15, 3, 3, 0, 2, 2, 49}
