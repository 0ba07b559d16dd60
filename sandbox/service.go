package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// Timing of services.
const (
	lastData     = time.Second           // time for data that a command sent just before its end
	connWait     = 30 * time.Second      // how long a connection waits for this process, even over a broken link
	grantLinger  = 30 * time.Second      // how long a grant outlives the command's last process
	refusedPause = 10 * time.Millisecond // after a connection without a grant; the guest should pass none
	// maxExtension is the maximum extension per message. maxExtended is the maximum of all extensions together.
	maxExtension = wire.MaxExtension * time.Millisecond
	maxExtended  = 24 * time.Hour
)

// Service is a host service for commands of a sandbox.
type Service struct {
	// Name is "tools", "model", or "egress". "tools" is a Unix socket for commands with a grant. "model" and "egress" are
	// TCP ports on the sandbox's loopback interface, which every process of the sandbox can reach.
	Name string
	// MaxConns is the maximum number of open connections, 1 to 128. If zero, it is 128. A command has at most 16
	// connections.
	MaxConns int
	// Handle serves a connection in a separate goroutine. The connection is closed when Handle returns. The context
	// ends a second after the command, when Serve's stop is called, or with the handle. For a TCP port, the command is
	// unknown, so the context has the values of the call that started the sandbox's latest command, for example the
	// trace and audit record.
	Handle func(context.Context, *ServiceConn)
	// Env returns variables for every command that this process starts during Serve. addr is the service's address.
	// Variables of Request.Env and of the command override them. The only exception is JAVA_TOOL_OPTIONS, which contains
	// the service's options followed by the other options. May be nil.
	Env func(addr string) map[string]string
}

// ServiceConn is a connection from a command.
type ServiceConn struct {
	net.Conn
	ConnID string
	// ExecID, Program, and Grant are only set for connections to "tools". ExecID is the connecting process's command.
	// Program is the name of the process, chosen by the process itself. Grant is the Value of the command's ServiceGrant.
	ExecID, Program string
	Grant           any
	Span            trace.SpanContext // span of the call that started the command

	peer *client.Peer // same connection as Conn
}

// CloseWrite closes the direction to the command.
func (c *ServiceConn) CloseWrite() error { return c.peer.CloseWrite() }

// ServiceGrant allows a command to connect to the service Name. The service's Handle receives Value.
type ServiceGrant struct {
	Name  string
	Value any
}

// grant contains the services of one command. It ends after the exit of all processes of the command.
type grant struct {
	services []ServiceGrant
	span     trace.SpanContext
	ctx      context.Context // lifetime of the command's connections
	end      context.CancelFunc
}

// Serve serves connections to a service until stop is called or the handle is closed, even if the link to the sandbox
// breaks and is restored. Neither stopping nor closing waits for Handle to return. Serve returns the address inside the
// sandbox, "@NAME" or "HOST:PORT". If this process already serves the name, Serve returns the address and an error
// wrapping backend.ErrExists. If another process serves the same name, the other process takes over the service
// permanently. A connection does not count as use of the sandbox, but the command does.
//
// The sandbox's kernel identifies the command of a connection. The sandbox is the security boundary: a hostile command
// can impersonate another command of the same sandbox.
func (s *Sandbox) Serve(ctx context.Context, svc Service) (addr string, stop func(), err error) {
	defer func() { err = WrapError("Serve", s.b.Name(), s.o.ID, err) }()
	if err := svc.check(); err != nil {
		return "", nil, err
	}
	s.serving.Lock()
	defer s.serving.Unlock()
	if addr, ok := s.served(svc.Name); ok {
		return addr, nil, fmt.Errorf("%w: service %s is already served", backend.ErrExists, svc.Name)
	}
	v := &serviceServer{s: s, svc: svc, ended: make(chan struct{}), slots: make(chan struct{}, svc.maxConns())}
	own, cancel := context.WithCancel(s.ctx)
	v.ctx = own
	var l *client.Listener
	err = s.call(ctx, true, 0, func(ctx context.Context, conn *client.Conn) (err error) {
		l, err = v.listen(ctx, conn)
		return err
	})
	if err != nil {
		cancel()
		return "", nil, err
	}
	s.addService(svc, l.Address())
	if !s.background(func() { v.run(l) }) {
		s.dropService(svc.Name)
		_ = l.Close() // only needed to release the service
		cancel()
		return "", nil, errClosed
	}
	return l.Address(), func() { cancel(); <-v.ended }, nil
}

// check returns an error if the service is invalid.
func (svc Service) check() error {
	switch {
	case wire.ServiceNetworks()[svc.Name] == "":
		return fmt.Errorf("%w: unknown service %q", backend.ErrInvalid, sanitize.Message(svc.Name))
	case svc.MaxConns < 0 || svc.MaxConns > wire.MaxConns:
		return fmt.Errorf("%w: service %s: MaxConns is %d, must be 1 to %d",
			backend.ErrInvalid, svc.Name, svc.MaxConns, wire.MaxConns)
	case svc.Handle == nil:
		return fmt.Errorf("%w: service %s has no Handle", backend.ErrInvalid, svc.Name)
	}
	return nil
}

func (svc Service) maxConns() int { return cmp.Or(svc.MaxConns, wire.MaxConns) }

// background runs f in a goroutine. Close waits for f. If the handle is closed, it returns false.
func (s *Sandbox) background(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.wg.Go(f)
	return true
}

// servedService is a service of this process.
type servedService struct {
	addr string
	env  map[string]string
}

// served returns the address of a service of this process.
func (s *Sandbox) served(name string) (addr string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, ok := s.services[name]
	return v.addr, ok
}

func (s *Sandbox) addService(svc Service, addr string) {
	v := servedService{addr: addr}
	if svc.Env != nil {
		v.env = svc.Env(addr)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.services[svc.Name] = v
}

func (s *Sandbox) dropService(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.services, name)
}

// serviceServer serves a service.
type serviceServer struct {
	s     *Sandbox
	svc   Service
	ctx   context.Context // ends with Serve's stop and the handle
	ended chan struct{}   // closed by run
	slots chan struct{}   // one slot per open connection; the guest also counts, but is untrusted
}

// listen starts listening on a connection to the guest. It has a limit, because Serve and openEgress hold locks.
func (v *serviceServer) listen(ctx context.Context, conn *client.Conn) (*client.Listener, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, answerMargin, errNoAnswer)
	defer cancel()
	l, err := conn.Listen(ctx, wire.ListenRequest{
		Name: v.svc.Name, MaxConns: v.svc.maxConns(), WaitMillis: connWait.Milliseconds(),
	})
	return l, noAnswer(ctx, err)
}

// run serves until the service is stopped or taken over, or the guest violates the protocol.
func (v *serviceServer) run(l *client.Listener) {
	defer close(v.ended)
	defer v.s.dropService(v.svc.Name)
	for l != nil {
		err := v.serve(l)
		_ = l.Close() // has ended; Close waits for the goroutines
		if v.ctx.Err() != nil {
			return
		}
		if !errors.Is(err, client.ErrConnLost) {
			level := slog.LevelWarn
			if v.s.o.Shared { // processes take over services from each other
				level = slog.LevelDebug
			}
			v.s.o.Logger.Log(v.ctx, level, "service ended",
				"sandbox", v.s.o.ID, "service", v.svc.Name, "error", sanitize.Message(err.Error()))
			return
		}
		l = v.relisten()
	}
}

// serve accepts connections until the listener ends.
func (v *serviceServer) serve(l *client.Listener) error {
	for {
		peer, err := l.Accept(v.ctx)
		if err != nil {
			return err
		}
		if !v.take(peer) {
			_ = peer.Close() // no grant
			bound.Pause(v.ctx, refusedPause)
		}
	}
}

// relisten listens on a new connection to the guest. If the service has ended, it returns nil.
func (v *serviceServer) relisten() (l *client.Listener) {
	v.s.persist(v.ctx, func(conn *client.Conn) (err error) {
		l, err = v.listen(v.ctx, conn)
		return err
	})
	return l
}

// take serves a connection. If the connection has no grant, it returns false.
func (v *serviceServer) take(peer *client.Peer) bool {
	c := &ServiceConn{Conn: peer, peer: peer, ConnID: peer.ConnID, ExecID: peer.ExecID, Program: peer.Program}
	life := context.Background()
	if c.ExecID != "" {
		g, value, ok := v.s.granted(c.ExecID, v.svc.Name)
		if !ok {
			return false
		}
		c.Grant, c.Span, life = value, g.span, g.ctx
	}
	select {
	case v.slots <- struct{}{}:
	default:
		return false
	}
	go func() {
		defer func() { <-v.slots }()
		v.handle(life, c)
	}()
	return true
}

// handle calls the service's Handle. The context ends with the service and with life.
func (v *serviceServer) handle(life context.Context, c *ServiceConn) {
	ctx := context.Background()
	if c.ExecID == "" {
		ctx = v.s.latestCall()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(v.ctx, cancel)()
	defer context.AfterFunc(life, cancel)()
	var closing sync.WaitGroup
	closing.Add(1)
	stop := context.AfterFunc(ctx, func() { defer closing.Done(); _ = c.Close() }) // unblocks a Handle
	v.svc.Handle(ctx, c)
	if stop() {
		closing.Done()
	}
	closing.Wait()
	_ = c.Close() // closing again has no effect
}

// latestCall returns a context with the values of the latest command's starting call. It is never canceled.
func (s *Sandbox) latestCall() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.latest
}

// grant allows a command to connect to services before the command is started. The caller must call settle after the
// starting call has returned.
func (s *Sandbox) grant(execID string, services []ServiceGrant, span trace.SpanContext) (settle func()) {
	if len(services) == 0 {
		return func() {}
	}
	g := &grant{services: slices.Clone(services), span: span}
	g.ctx, g.end = context.WithCancel(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.grants[execID] = g
	return func() {
		if !s.background(func() { s.outlive(execID, g) }) {
			g.end()
		}
	}
}

// granted returns the grant of a command and the value for a service.
func (s *Sandbox) granted(execID, service string) (*grant, any, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := s.grants[execID]
	if g == nil {
		return nil, nil, false
	}
	i := slices.IndexFunc(g.services, func(sg ServiceGrant) bool { return sg.Name == service })
	if i < 0 {
		return nil, nil, false
	}
	return g, g.services[i].Value, true
}

// outlive ends a grant when all processes of the command have exited.
func (s *Sandbox) outlive(execID string, g *grant) {
	s.persist(s.ctx, func(conn *client.Conn) error {
		_, err := conn.Wait(s.ctx, wire.WaitRequest{ExecID: execID, WaitMillis: -1, Tree: true})
		if errors.As(err, new(*wire.Error)) {
			return nil // it never started
		}
		return err
	})
	bound.Pause(s.ctx, lastData)
	g.end()
	bound.Pause(s.ctx, grantLinger)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.grants, execID)
}

// serviceNames returns the names of the granted services.
func serviceNames(grants []ServiceGrant) []string {
	var names []string
	for _, g := range grants {
		names = append(names, g.Name)
	}
	return names
}

// patience is the deadline of a pending call about a command.
type patience struct {
	due   time.Time
	timer *time.Timer
}

// patient limits the time of a call about a command. Command.Extend extends the limit.
func (s *Sandbox) patient(ctx context.Context, execID string, limit time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &patience{due: time.Now().Add(limit), timer: time.AfterFunc(limit, func() { cancel(errNoAnswer) })}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits[execID] = p
	return ctx, func() {
		p.timer.Stop()
		cancel(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.waits, execID)
	}
}

// waitLonger extends the limit of the pending call about a command.
func (s *Sandbox) waitLonger(execID string, by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.waits[execID]; p != nil {
		p.due = p.due.Add(by)
		p.timer.Reset(time.Until(p.due))
	}
}
