package client

import (
	"context"
	"errors"
	"net"
	"regexp"
	"strings"
	"sync"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// parkedAccepts is how many requests of a listener wait for a connection.
const parkedAccepts = 4

// Listener accepts what commands of a sandbox connect to. Its methods may be called concurrently.
type Listener struct {
	address string
	name    string
	network string
	conn    *Conn
	call    *call                   // listen-v1, which ends when another host listens
	ctx     context.Context         // ends with the listener, and has the reason as its cause
	fail    context.CancelCauseFunc // ends it
	tasks   sync.WaitGroup
	peers   chan *Peer
}

// Listen takes a service over from whichever host had it. Its goroutines end with Close, or when the connection does.
func (c *Conn) Listen(ctx context.Context, req wire.ListenRequest) (*Listener, error) {
	network := wire.ServiceNetworks()[req.Name]
	if network == "" {
		return nil, wire.Errorf(wire.CodeUnsupported, "unknown service %.40q", req.Name)
	}
	own, fail := context.WithCancelCause(context.WithoutCancel(ctx)) // the listener outlives the call that made it
	release := context.AfterFunc(ctx, func() { fail(context.Cause(ctx)) })
	k, err := c.open(own, wire.OpListen, &req)
	if err != nil {
		fail(err)
		return nil, err
	}
	var res wire.ListenResult
	if err = k.answer(&res); err == nil {
		err = checkAddress(network, res.Address)
	}
	if !release() && err == nil || ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		fail(err) // ends the call, too
		return nil, err
	}
	l := &Listener{address: res.Address, name: req.Name, network: network, conn: c, call: k, ctx: own, fail: fail,
		peers: make(chan *Peer)}
	l.tasks.Go(l.watch)
	for range parkedAccepts {
		l.tasks.Go(l.park)
	}
	return l, nil
}

// Address is what commands connect to: "@NAME", a Unix socket in the abstract namespace, or "HOST:PORT".
func (l *Listener) Address() string { return l.address }

// Accept waits for the next connection. It returns ErrNotListening once another host has taken the service over, and
// the reason when the connection to the guest ended. The Peer must be closed.
func (l *Listener) Accept(ctx context.Context) (*Peer, error) {
	select {
	case p := <-l.peers:
		return p, nil
	case <-l.ctx.Done():
		return nil, context.Cause(l.ctx)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Close gives the service up. Connections that were accepted live on. Idempotent.
func (l *Listener) Close() error {
	l.fail(net.ErrClosed)
	l.tasks.Wait()
	return nil
}

// watch waits for the end of the request that made the listener.
func (l *Listener) watch() {
	_, err := l.call.read(nil)
	switch {
	case err == nil:
		err = protocolErrorf("a second answer to %s", wire.OpListen)
	case errors.Is(err, errUnanswered):
		err = ErrNotListening
	}
	l.fail(err)
}

// park keeps one request waiting for a connection.
func (l *Listener) park() {
	for {
		p, err := l.accept()
		if err != nil {
			l.fail(err)
			return
		}
		select {
		case l.peers <- p:
		case <-l.ctx.Done():
			_ = p.Close() // nobody takes it any more
			return
		}
	}
}

func (l *Listener) accept() (*Peer, error) {
	k, err := l.conn.open(l.ctx, wire.OpAccept, wire.AcceptRequest{Name: l.name})
	if err != nil {
		return nil, err
	}
	p := &Peer{}
	if err = k.answer(&p.Accepted); err == nil {
		err = checkAccepted(l.network, &p.Accepted)
	}
	if err == nil && !k.stop() { // from now on it is not the listener's
		err = l.ctx.Err()
	}
	if err != nil {
		k.end()
		var refused *wire.Error
		if errors.As(err, &refused) && refused.Code == wire.CodeNotFound {
			err = ErrNotListening
		}
		return nil, err
	}
	p.peerConn = &peerConn{call: k}
	return p, nil
}

// Forms of what a guest says of connections.
var (
	connID     = regexp.MustCompile(`\A[0-9a-f]{16}\z`)
	program    = regexp.MustCompile(`\A[ -~]{0,16}\z`)
	unixSocket = regexp.MustCompile(`\A@workcell-[a-z0-9-]{1,90}\z`)
)

func checkAddress(network, address string) error {
	ok := network == "unix" && unixSocket.MatchString(address)
	if network == "tcp" {
		host, port, err := net.SplitHostPort(address)
		ok = err == nil && host == "127.0.0.1" && port != "" && len(port) <= 5 && strings.Trim(port, "0123456789") == ""
	}
	if !ok {
		return protocolErrorf("address of a service")
	}
	return nil
}

// checkAccepted checks that a connection to a Unix service comes from an exec, and one over TCP from nobody known.
func checkAccepted(network string, a *wire.Accepted) error {
	known := wire.ValidExecID(a.ExecID) && a.PID > 0
	nobody := a.ExecID == "" && a.PID == 0 && a.Program == ""
	if !connID.MatchString(a.ConnID) || !program.MatchString(a.Program) || network == "unix" && !known || network == "tcp" && !nobody {
		return protocolErrorf("connection without identity")
	}
	return nil
}
