package server

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// dialPatience is the maximum time to connect, because a slow server keeps connections in a queue.
const dialPatience = 20 * time.Second

// handleDial connects to a port on the sandbox's loopback interface and copies the data of the connection until it
// ends.
func (s *Server) handleDial(r *request, req *wire.DialRequest) error {
	targets, err := loopback(req.Address)
	if err != nil {
		return err
	}
	if s.dials.Add(1) > wire.MaxDials {
		s.dials.Add(-1)
		return wire.Errorf(wire.CodeCapacity, "limit of connections to ports reached (%d)", wire.MaxDials)
	}
	defer s.dials.Add(-1)
	h := newCarrier(r)
	defer r.Release()
	conn, err := h.dial(targets)
	if err != nil {
		return err
	}
	defer h.close(conn)
	return h.carry(conn, wire.Dialed{Local: conn.LocalAddr().String(), Remote: conn.RemoteAddr().String()})
}

// loopback returns the addresses for a text. It only returns loopback addresses.
func loopback(text string) ([]netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return nil, wire.Errorf(wire.CodeInvalid, "the address %.80q is not HOST:PORT", text)
	}
	hosts := []string{host}
	if host == "localhost" {
		hosts = []string{"127.0.0.1", "::1"}
	}
	var targets []netip.AddrPort
	for _, host := range hosts {
		target, err := netip.ParseAddrPort(net.JoinHostPort(host, port))
		switch {
		case err != nil || target.Port() == 0:
			return nil, wire.Errorf(wire.CodeInvalid, "the address %.80q is not a port on the loopback interface", text)
		case !target.Addr().Unmap().IsLoopback() || target.Addr().Zone() != "":
			return nil, wire.Errorf(wire.CodePermission,
				"%.80q is not an address of the sandbox's loopback, such as 127.0.0.1:%d", text, target.Port())
		}
		targets = append(targets, target)
	}
	return targets, nil
}

// dial connects to the first available address. It stops if the host disconnects.
func (h *carrier) dial(targets []netip.AddrPort) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialPatience)
	defer cancel()
	go func() {
		select {
		case <-h.left:
			cancel()
		case <-ctx.Done():
		}
	}()
	var first error
	for _, target := range targets {
		conn, err := new(net.Dialer).DialTCP(ctx, "tcp", netip.AddrPort{}, target)
		if err == nil {
			return conn, nil
		}
		if first == nil {
			first = dialError(target, err)
		}
	}
	return nil, first
}

func dialError(target netip.AddrPort, err error) error {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return wire.Errorf(wire.CodeNotFound, "nothing listens on %s", target)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, unix.ETIMEDOUT):
		return wire.Errorf(wire.CodeTimeout, "connection to %s not accepted", target)
	}
	return wire.Errorf(wire.CodeInternal, "connecting to %s: %v", target, err)
}

// close closes a connection. If the host disconnected without ending the direction, the data may be incomplete. The
// reader must not treat incomplete data as complete, so close resets the connection.
func (h *carrier) close(conn *net.TCPConn) {
	if !closed(h.hostEnd) {
		_ = conn.SetLinger(0) // fails if the connection is closed
	}
	_ = conn.Close() // no data can be lost
}
