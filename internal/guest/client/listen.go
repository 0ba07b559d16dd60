package client

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"regexp"
	"sync"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// parkedAccepts is the number of a listener's requests waiting for a connection.
const parkedAccepts = 4

// Listener accepts connections of a sandbox's commands. It is safe for concurrent use.
type Listener struct {
	address string
	name    string
	network string
	conn    *Conn
	call    *call                   // listen-v1 request, which ends when another host listens
	ctx     context.Context         // ends with the listener; the cause is the reason
	fail    context.CancelCauseFunc // ends ctx
	tasks   sync.WaitGroup
	peers   chan *Peer
}

// Listen starts listening for a service, and takes it over from another host if necessary. The goroutines end with
// Close or with the connection.
func (c *Conn) Listen(ctx context.Context, req wire.ListenRequest) (*Listener, error) {
	network := wire.ServiceNetworks()[req.Name]
	own, fail := context.WithCancelCause(context.WithoutCancel(ctx)) // the listener outlives this call
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
		fail(err) // also ends the call
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

// Address returns the address for commands: a Unix socket in the abstract namespace, for example "@workcell-tools", or
// "HOST:PORT".
func (l *Listener) Address() string { return l.address }

// Accept waits for the next connection. If another host took over the service, Accept returns ErrNotListening. If the
// connection to the guest agent ended, Accept returns the reason. The caller must close the Peer.
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

// Close stops listening. Accepted connections stay open. Calling Close again has no effect.
func (l *Listener) Close() error {
	l.fail(net.ErrClosed)
	l.tasks.Wait()
	return nil
}

// watch waits for the end of the listener's request.
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
			_ = p.Close() // the listener was closed
			return
		}
	}
}

func (l *Listener) accept() (*Peer, error) {
	k, err := l.conn.open(l.ctx, wire.OpAccept, wire.AcceptRequest{Name: l.name, Listen: l.call.st.StreamID()})
	if err != nil {
		return nil, err
	}
	p := &Peer{peerConn: &peerConn{call: k}}
	err = k.keep(&p.Accepted, func() error { return checkAccepted(l.network, &p.Accepted) })
	if refused, ok := errors.AsType[*wire.Error](err); ok && refused.Code == wire.CodeNotFound {
		err = ErrNotListening
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

// Formats of the guest agent's information about connections.
var (
	connID     = regexp.MustCompile(`\A[0-9a-f]{16}\z`)
	program    = regexp.MustCompile(`\A[ -~]{0,16}\z`)
	unixSocket = regexp.MustCompile(`\A@workcell-[a-z0-9-]{1,90}\z`)
)

func checkAddress(network, address string) error {
	ok := network == "unix" && unixSocket.MatchString(address)
	if network == "tcp" {
		ap, err := netip.ParseAddrPort(address)
		ok = err == nil && ap.Addr() == netip.AddrFrom4([4]byte{127, 0, 0, 1}) && ap.String() == address
	}
	if !ok {
		return protocolErrorf("address of a service")
	}
	return nil
}

// checkAccepted requires the identity of a command for a connection to a Unix service, and no identity for a TCP
// connection.
func checkAccepted(network string, a *wire.Accepted) error {
	known := wire.ValidExecID(a.ExecID) && a.PID > 0
	unknown := a.ExecID == "" && a.PID == 0 && a.Program == ""
	if !connID.MatchString(a.ConnID) || !program.MatchString(a.Program) ||
		network == "unix" && !known || network == "tcp" && !unknown {
		return protocolErrorf("connection without identity")
	}
	return nil
}
