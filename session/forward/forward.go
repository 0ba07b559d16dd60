// Package forward listens on host ports and forwards connections to ports of a sandbox. The sandbox needs no network:
// connections use the same stream as commands, [sandbox.Sandbox.DialContext]. Programs in the sandbox cannot see or
// reach the host's ports.
package forward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/sandbox"
)

// DefaultMaxConns is the maximum number of open connections of all ports. A sandbox accepts 128 from all clients.
const DefaultMaxConns = 100

// bufferSize is the maximum number of bytes per copy.
const bufferSize = 60 << 10

// acceptPause is how long the forwarder waits if the host has no memory or descriptors for a connection.
const acceptPause = 50 * time.Millisecond

// Port maps a host port to a sandbox port.
type Port struct {
	Host    uint16 // 0 means any free port
	Sandbox uint16
}

// ParsePort parses PORT (the same port on both sides) or HOST:SANDBOX. An empty HOST means any free port.
func ParsePort(text string) (Port, error) {
	host, inside, two := strings.Cut(text, ":")
	if !two {
		inside = host
	}
	s, err := strconv.ParseUint(inside, 10, 16)
	h, hostErr := strconv.ParseUint(cmp.Or(host, "0"), 10, 16)
	if err != nil || hostErr != nil || s == 0 || host != "" && h == 0 {
		return Port{}, fmt.Errorf("%w: invalid port %q: must be PORT or HOST:SANDBOX with ports 1 to 65535",
			backend.ErrInvalid, sanitize.Clip(text))
	}
	return Port{Host: uint16(h), Sandbox: uint16(s)}, nil
}

// Options are options for Listen. The zero value is valid.
type Options struct {
	// Address is the host address to listen on. If it is the zero value, it is 127.0.0.1. If it is not a loopback
	// address, other machines can use the ports.
	Address netip.Addr
	// MaxConns is the maximum number of open connections of all ports. Further connections wait. If zero, it is
	// DefaultMaxConns.
	MaxConns int
	// Log receives a message for each connection refused by the sandbox. If nil, nothing is logged.
	Log *slog.Logger
}

// Forwarder listens on host ports for a sandbox. It is safe for concurrent use.
type Forwarder struct {
	s     *sandbox.Sandbox
	ports []Port // with the chosen host ports
	lns   []*net.TCPListener
	slots chan struct{} // one slot per open connection
	log   *slog.Logger
}

// Listen starts to listen. Connections wait for Serve. If a port is in use, Listen returns an error.
func Listen(s *sandbox.Sandbox, ports []Port, opts *Options) (_ *Forwarder, err error) {
	o := *cmp.Or(opts, &Options{})
	if !o.Address.IsValid() {
		o.Address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if o.MaxConns <= 0 {
		o.MaxConns = DefaultMaxConns
	}
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	f := &Forwarder{s: s, slots: make(chan struct{}, o.MaxConns), log: o.Log}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	for _, p := range ports {
		ln, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(o.Address, p.Host)))
		if err != nil {
			return nil, fmt.Errorf("port %d of the host: %w", p.Host, err)
		}
		p.Host = ln.Addr().(*net.TCPAddr).AddrPort().Port() // Addr of a TCP listener is always a *net.TCPAddr
		f.lns, f.ports = append(f.lns, ln), append(f.ports, p)
	}
	return f, nil
}

// Addrs returns the host addresses in the order of the ports, with the chosen ports.
func (f *Forwarder) Addrs() []net.Addr {
	var list []net.Addr
	for _, ln := range f.lns {
		list = append(list, ln.Addr())
	}
	return list
}

// Close stops listening and ends Serve. Calling Close again has no effect.
func (f *Forwarder) Close() error {
	var errs []error
	for _, ln := range f.lns {
		if err := ln.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Serve forwards connections until ctx ends or Close is called, and then returns nil. After the sandbox is lost or
// closed, Serve returns an error at the next connection. Before Serve returns, it closes the Forwarder, resets the open
// connections, and waits for their goroutines.
func (f *Forwarder) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { _ = f.Close() })() // unblocks Accept
	var tasks sync.WaitGroup
	for i, ln := range f.lns {
		tasks.Go(func() {
			defer cancel(nil) // if one listener is closed, close all
			f.accept(ctx, cancel, ln, f.ports[i], &tasks)
		})
	}
	<-ctx.Done()
	tasks.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}

// accept forwards the connections of one port.
func (f *Forwarder) accept(ctx context.Context, gone context.CancelCauseFunc, ln *net.TCPListener, p Port,
	tasks *sync.WaitGroup) {
	for {
		conn, err := ln.AcceptTCP()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || !bound.Pause(ctx, acceptPause) {
				return
			}
			continue
		}
		select { // after accepting, to keep slots free of unused ports
		case f.slots <- struct{}{}:
		case <-ctx.Done():
			(&link{host: conn}).reset()
			return
		}
		tasks.Go(func() {
			defer func() { <-f.slots }()
			if err := f.serve(ctx, conn, p); err != nil {
				gone(err)
			}
		})
	}
}

// serve forwards one connection. If the sandbox is lost or closed, it returns an error.
func (f *Forwarder) serve(ctx context.Context, host *net.TCPConn, p Port) error {
	l := &link{host: host}
	defer l.close()
	inside, err := f.s.DialContext(ctx, "tcp", net.JoinHostPort("localhost", strconv.Itoa(int(p.Sandbox))))
	switch {
	case errors.Is(err, backend.ErrLost) || errors.Is(err, backend.ErrClosed):
		l.reset()
		return err
	case err != nil:
		l.reset()
		if ctx.Err() == nil {
			f.log.WarnContext(ctx, "connection not forwarded", "port", p.Sandbox, "error", err)
		}
		return nil
	}
	l.inside = inside.(duplex) // documented by DialContext
	defer context.AfterFunc(ctx, l.reset)()
	var tasks sync.WaitGroup
	tasks.Go(func() { l.pass(l.inside, l.host) })
	l.pass(l.host, l.inside)
	tasks.Wait()
	return nil
}

// duplex is a connection whose directions can be closed separately.
type duplex interface {
	net.Conn
	CloseWrite() error
	SetLinger(sec int) error
}

// link is a host connection and the matching connection in the sandbox.
type link struct {
	host, inside duplex
	once         sync.Once // for reset
}

// reset resets both connections, to prevent a normal end of the data on either side.
func (l *link) reset() {
	l.once.Do(func() {
		for _, c := range []duplex{l.host, l.inside} {
			if c != nil {
				_ = c.SetLinger(0) // fails if the connection is closed
			}
		}
		l.close()
	})
}

func (l *link) close() {
	for _, c := range []duplex{l.host, l.inside} {
		if c != nil {
			_ = c.Close() // the data was either delivered or never will be
		}
	}
}

// pass copies one direction and closes it at the end. After an error it resets both connections, to prevent a part of
// the data from looking complete.
func (l *link) pass(dst, src duplex) {
	// Without the wrappers, CopyBuffer would call methods of the connections and ignore the buffer.
	_, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, bufferSize))
	if err == nil {
		err = dst.CloseWrite()
	}
	if err != nil {
		l.reset()
	}
}
