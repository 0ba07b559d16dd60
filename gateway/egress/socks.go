package egress

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"time"
)

// SOCKS5, RFC 1928: CONNECT without authentication.
const (
	socksVersion = 5
	socksConnect = 1
	socksIPv4    = 1
	socksName    = 3
	socksIPv6    = 4

	socksDone        = 0
	socksFailed      = 1
	socksDenied      = 2
	socksUnreachable = 4
	socksNoCommand   = 7
	socksNoAddress   = 8
	socksNoMethod    = 0xff
)

// errSocks ends a connection that is no SOCKS5. What there was to answer was answered.
var errSocks = errors.New("it is no SOCKS5 that is served here")

// serveSOCKS answers a connection of SOCKS5.
func (d *door) serveSOCKS(ctx context.Context, c *client) {
	_ = c.SetDeadline(time.Now().Add(headerTime)) // a connection that is closed is noticed by what follows
	to, err := readSOCKS(c, c)
	if err != nil {
		return
	}
	_ = c.SetDeadline(time.Time{}) // the same
	d.tunnel(ctx, c, to, func(r *refusal) error { return socksReply(c, socksCode(r)) })
}

// socksCode returns the reply for a refusal; nil is success.
func socksCode(r *refusal) byte {
	switch {
	case r == nil:
		return socksDone
	case r.status == http.StatusForbidden:
		return socksDenied
	}
	return socksUnreachable
}

func socksReply(w io.Writer, code byte) error {
	_, err := w.Write([]byte{socksVersion, code, 0, socksIPv4, 0, 0, 0, 0, 0, 0})
	return err
}

// readSOCKS reads greeting and request, and answers all that is wrong with them.
func readSOCKS(r io.Reader, w io.Writer) (to target, err error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:2]); err != nil {
		return to, err
	}
	methods := make([]byte, head[1])
	if _, err := io.ReadFull(r, methods); err != nil || head[0] != socksVersion {
		return to, errSocks
	}
	method := byte(socksNoMethod)
	for _, m := range methods {
		if m == 0 {
			method = 0
		}
	}
	if _, err := w.Write([]byte{socksVersion, method}); err != nil || method != 0 {
		return to, errSocks
	}
	if _, err := io.ReadFull(r, head[:]); err != nil || head[0] != socksVersion {
		return to, errSocks
	}
	host, err := readSOCKSHost(r, head[3])
	if err != nil {
		_ = socksReply(w, socksNoAddress) // it is over in any case
		return to, err
	}
	var port [2]byte
	if _, err := io.ReadFull(r, port[:]); err != nil {
		return to, err
	}
	if head[1] != socksConnect {
		_ = socksReply(w, socksNoCommand)
		return to, errSocks
	}
	to, ok := newTarget(host, strconv.Itoa(int(binary.BigEndian.Uint16(port[:]))))
	if !ok {
		_ = socksReply(w, socksFailed)
		return to, errSocks
	}
	return to, nil
}

// readSOCKSHost reads the address of a request.
func readSOCKSHost(r io.Reader, kind byte) (string, error) {
	size := map[byte]int{socksIPv4: 4, socksIPv6: 16, socksName: 1}[kind]
	if size == 0 {
		return "", errSocks
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(r, b); err != nil {
		return "", err
	}
	if addr, ok := netip.AddrFromSlice(b); ok {
		return addr.Unmap().String(), nil
	}
	name := make([]byte, b[0])
	_, err := io.ReadFull(r, name)
	return string(name), err
}
