package netguard

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Apply restricts the current network namespace and replaces the rules of an earlier Apply. It needs CAP_NET_ADMIN in
// the namespace. If the rules have no effect afterwards, Apply returns an error.
func Apply(r Rules) error {
	closed := Closed()
	local, err := networks() // the networks of the gateway and other sandboxes
	if err != nil {
		return err
	}
	for _, n := range local {
		closed = append(closed, n.Masked())
	}
	err = commit(ruleset(r, closed, true))
	if errors.Is(err, unix.ENOENT) { // the kernel cannot count connections
		err = commit(ruleset(r, closed, false))
	}
	if err != nil {
		return err
	}
	return verify(r)
}

// verify tries to reach a forbidden address. This detects an unused filter, for example because of a network stack
// other than the kernel's.
func verify(r Rules) error {
	metadata := netip.MustParseAddrPort("169.254.169.254:9")
	for _, p := range r.Allow {
		if p.Contains(metadata.Addr()) {
			return nil
		}
	}
	conn, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(metadata))
	if err == nil {
		_, err = conn.Write([]byte("x"))
		err = errors.Join(err, conn.Close())
	}
	if errors.Is(err, syscall.EPERM) {
		return nil
	}
	return fmt.Errorf("the rules are set and have no effect: %v", err)
}

// commit sends the messages of a netfilter transaction and waits for the response to each message.
func commit(msgs []message) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("netfilter: %w", err)
	}
	defer unix.Close(fd) //nolint:errcheck // no data is buffered
	batch, last := encodeBatch(msgs)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}); err != nil {
		return fmt.Errorf("netfilter: %w", err)
	}
	if err := unix.Sendto(fd, batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("netfilter: send: %w", err)
	}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return fmt.Errorf("netfilter: receive: %w", err)
		}
		answers, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return fmt.Errorf("netfilter: answer: %w", err)
		}
		for _, a := range answers {
			if a.Header.Type != unix.NLMSG_ERROR || len(a.Data) < 4 {
				continue
			}
			if code := int32(order.Uint32(a.Data)); code != 0 {
				return fmt.Errorf("netfilter: message %d: %w", a.Header.Seq, syscall.Errno(-code))
			}
			if a.Header.Seq == last {
				return nil
			}
		}
	}
}
