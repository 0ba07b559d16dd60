// Package forward has ports of a sandbox listen on the host. The sandbox needs no network for that: connections go the
// way of its commands, [sandbox.Sandbox.DialContext]. Nothing inside learns of the host's ports, or reaches them.
package forward

import (
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
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/sandbox"
)

// DefaultMaxConns is how many connections of all ports are open at once; a sandbox takes 128, from all who connect.
const DefaultMaxConns = 100

// bufferSize is how much is passed on at a time.
const bufferSize = 60 << 10

// acceptPause is how long nothing is accepted when the host has no memory or descriptors for it.
const acceptPause = 50 * time.Millisecond

// Port is a port of the host that leads to one of the sandbox.
type Port struct {
	Host    uint16 // 0 is any that is free
	Sandbox uint16
}

// ParsePort reads PORT, the same on both sides, or HOST:SANDBOX. An empty HOST is any free port.
func ParsePort(text string) (Port, error) {
	host, inside, two := strings.Cut(text, ":")
	if !two {
		inside = host
	}
	s, err := strconv.ParseUint(inside, 10, 16)
	h := s
	if two {
		h = 0
		if host != "" && err == nil {
			h, err = strconv.ParseUint(host, 10, 16)
		}
	}
	if err != nil || s == 0 || host == "0" {
		return Port{}, fmt.Errorf("%w: invalid port %q: must be PORT or HOST:SANDBOX with ports 1 to 65535", backend.ErrInvalid, sanitize.Clip(text))
	}
	return Port{Host: uint16(h), Sandbox: uint16(s)}, nil
}

// Options refine Listen. The zero value is good.
type Options struct {
	// Address is where the host listens; the zero value is 127.0.0.1. On any address that is not of the loopback, whoever
	// reaches the host reaches the ports.
	Address netip.Addr
	// MaxConns is how many connections of all ports are open at once, further ones wait; zero is DefaultMaxConns.
	MaxConns int
	// Log gets a line for each connection that the sandbox does not take; nil is none.
	Log *slog.Logger
}

// Forwarder listens on the host for a sandbox. Its methods may be called concurrently.
type Forwarder struct {
	s     *sandbox.Sandbox
	ports []Port // as they are listened on
	lns   []*net.TCPListener
	slots chan struct{} // held by open connections
	log   *slog.Logger
}

// Listen begins to listen; connections wait for Serve. It fails when one of the ports is taken.
func Listen(s *sandbox.Sandbox, ports []Port, opts *Options) (_ *Forwarder, err error) {
	var o Options
	if opts != nil {
		o = *opts
	}
	if !o.Address.IsValid() {
		o.Address = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if o.MaxConns <= 0 {
		o.MaxConns = DefaultMaxConns
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
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
		p.Host = ln.Addr().(*net.TCPAddr).AddrPort().Port() // what a TCP listener has
		f.lns, f.ports = append(f.lns, ln), append(f.ports, p)
	}
	return f, nil
}

// Addrs returns the host's addresses, in the order of the ports, with the ports that were chosen.
func (f *Forwarder) Addrs() []net.Addr {
	var list []net.Addr
	for _, ln := range f.lns {
		list = append(list, ln.Addr())
	}
	return list
}

// Close ends listening, and with that Serve. Idempotent.
func (f *Forwarder) Close() error {
	var errs []error
	for _, ln := range f.lns {
		if err := ln.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Serve passes connections on until ctx ends or Close is called, which is no error, or the sandbox is gone. It closes
// the Forwarder, resets the connections that are open, and waits for their goroutines.
func (f *Forwarder) Serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { _ = f.Close() }) // frees Accept
	defer stop()
	var tasks sync.WaitGroup
	for i, ln := range f.lns {
		tasks.Go(func() {
			defer cancel(nil) // when one is closed, so are the others
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

// accept passes the connections of one port on.
func (f *Forwarder) accept(ctx context.Context, gone context.CancelCauseFunc, ln *net.TCPListener, p Port, tasks *sync.WaitGroup) {
	for {
		conn, err := ln.AcceptTCP()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || !pause(ctx, acceptPause) {
				return
			}
			continue
		}
		select { // not before there is a connection: ports that nobody uses hold no slot
		case f.slots <- struct{}{}:
		case <-ctx.Done():
			l := &link{host: conn}
			l.resetBoth()
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

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// serve passes one connection on. It returns an error when the sandbox is gone.
func (f *Forwarder) serve(ctx context.Context, host *net.TCPConn, p Port) error {
	l := &link{host: host}
	defer l.close()
	inside, err := f.s.DialContext(ctx, "tcp", net.JoinHostPort("localhost", strconv.Itoa(int(p.Sandbox))))
	switch {
	case errors.Is(err, backend.ErrLost) || errors.Is(err, backend.ErrClosed):
		l.reset.Do(l.resetBoth)
		return err
	case err != nil:
		l.reset.Do(l.resetBoth)
		if ctx.Err() == nil {
			f.log.WarnContext(ctx, "connection not forwarded", "port", p.Sandbox, "error", err)
		}
		return nil
	}
	l.inside = inside.(duplex) // what DialContext promises
	stop := context.AfterFunc(ctx, func() { l.reset.Do(l.resetBoth) })
	defer stop()
	var tasks sync.WaitGroup
	tasks.Go(func() { l.pass(l.inside, l.host) })
	l.pass(l.host, l.inside)
	tasks.Wait()
	return nil
}

// duplex is a connection of which each direction ends by itself.
type duplex interface {
	net.Conn
	CloseWrite() error
	SetLinger(sec int) error
}

// link is a connection on the host and its continuation inside.
type link struct {
	host, inside duplex
	reset        sync.Once
}

// resetBoth ends the connections so that neither side takes that for the end of what the other one sent.
func (l *link) resetBoth() {
	for _, c := range []duplex{l.host, l.inside} {
		if c != nil {
			_ = c.SetLinger(0) // fails for one that is closed
		}
	}
	l.close()
}

func (l *link) close() {
	for _, c := range []duplex{l.host, l.inside} {
		if c != nil {
			_ = c.Close() // what was written was taken or never will be
		}
	}
}

// pass passes one direction on, and its end. What breaks breaks both: a part must not be taken for the whole.
func (l *link) pass(dst, src duplex) {
	buf := make([]byte, bufferSize)
	for {
		n, err := src.Read(buf)
		if n > 0 {
			if _, err := dst.Write(buf[:n]); err != nil {
				l.reset.Do(l.resetBoth)
				return
			}
		}
		switch {
		case errors.Is(err, io.EOF):
			if dst.CloseWrite() != nil {
				l.reset.Do(l.resetBoth)
			}
			return
		case err != nil:
			l.reset.Do(l.resetBoth)
			return
		}
	}
}
