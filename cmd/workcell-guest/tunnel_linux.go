package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
)

const (
	maxHeaderLines = 100
	maxReason      = 4 << 10 // maximum size of a proxy's reason for a refusal, in bytes
)

// tunnel connects in and out to a host through an HTTP proxy. ssh starts it as the ProxyCommand. args are the host and
// the port. proxy is the proxy's address.
func tunnel(args []string, proxy string, in io.Reader, out, errs io.Writer) int {
	if len(args) != 2 {
		return fail(errs, errors.New("usage: workcell-guest tunnel HOST PORT"))
	}
	addr, err := netip.ParseAddrPort(strings.TrimPrefix(proxy, "http://"))
	if err != nil {
		return fail(errs, errors.New("HTTPS_PROXY is not the address of the sandbox's proxy"))
	}
	conn, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(addr))
	if err != nil {
		return fail(errs, err)
	}
	defer conn.Close() //nolint:errcheck // the connection has ended
	r := bufio.NewReader(conn)
	if err := askProxy(conn, r, net.JoinHostPort(args[0], args[1])); err != nil {
		return fail(errs, err)
	}
	go func() {
		_, _ = io.Copy(conn, in) // a broken connection also ends the copy below
		_ = conn.CloseWrite()    // a broken connection also ends the copy below
	}()
	_, err = io.Copy(out, r)
	return exit(err)
}

// askProxy requests a connection to a host. If the proxy refuses, the error contains the proxy's reason.
func askProxy(conn io.Writer, r *bufio.Reader, host string) error {
	if strings.ContainsAny(host, " \r\n") {
		return fmt.Errorf("invalid host %q", host)
	}
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", host); err != nil {
		return err
	}
	var status string
	for n := range maxHeaderLines {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return fmt.Errorf("no valid response from the proxy: %w", err)
		}
		line = bytes.TrimSpace(line)
		if n == 0 {
			status = string(line)
		}
		if len(line) > 0 {
			continue
		}
		if strings.HasPrefix(status, "HTTP/1.1 200 ") {
			return nil
		}
		reason, _ := io.ReadAll(io.LimitReader(r, maxReason)) // the available part
		return fmt.Errorf("%s\n%s", status, bytes.TrimSpace(reason))
	}
	return errors.New("no valid response from the proxy: too many header lines")
}
