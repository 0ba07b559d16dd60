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

// Times of services.
const (
	connWait     = 30 * time.Second      // how long a connection waits for this process, over a broken link too
	grantLinger  = 30 * time.Second      // how long a grant outlives the last process of its command
	refusedPause = 10 * time.Millisecond // after a connection that no grant is for: the guest passes on none of those
	// maxExtension is the most that one message adds to a deadline, maxExtended what all of them do.
	maxExtension = wire.MaxExtension * time.Millisecond
	maxExtended  = 24 * time.Hour
)

// Service is something of the host that commands of a sandbox may connect to.
type Service struct {
	// Name is "tools", a Unix socket for commands that are granted it, or "model" or "egress", a TCP port of the sandbox's
	// loopback that every process of the sandbox can reach.
	Name string
	// MaxConns bounds the connections that are open at once, 1 to 128. Zero is 128. A command has 16 at most.
	MaxConns int
	// Handle serves a connection, in a goroutine of its own. Its context ends with the command, Serve's stop, or the
	// handle; the connection is closed when it returns. Of a TCP port, whose commands are not known, it has the values of
	// the call that started the sandbox's latest command: its trace and its record.
	Handle func(context.Context, *ServiceConn)
	// Env returns variables of every command that this process starts while it serves, from the address to connect to.
	// Those of Request.Env and of the command go before them, except that JAVA_TOOL_OPTIONS contains the options of the
	// service and then the other options. May be nil.
	Env func(addr string) map[string]string
}

// ServiceConn is a connection of a command.
type ServiceConn struct {
	net.Conn
	ConnID string
	// ExecID, Program and Grant are known of connections to "tools" alone: the command that the connecting process belongs
	// to, the name of that process, which it chose itself, and the Value of the command's ServiceGrant.
	ExecID, Program string
	Grant           any
	Span            trace.SpanContext // of the call that started the command

	peer *client.Peer // the same as Conn
}

// CloseWrite ends the direction to the command.
func (c *ServiceConn) CloseWrite() error { return c.peer.CloseWrite() }

// ServiceGrant permits a command to connect to the service Name. Value is for the service's Handle.
type ServiceGrant struct {
	Name  string
	Value any
}

// grant is what a command may connect to, until nothing of it is left.
type grant struct {
	services []ServiceGrant
	span     trace.SpanContext
	ctx      context.Context // the command's life as far as its connections go
	end      context.CancelFunc
}

// Serve has this process answer the connections to a service until stop is called or the handle closes, over broken
// links too. Neither waits for Handle to return. It returns the address to connect to inside the sandbox, "@NAME" or
// "HOST:PORT". If this process serves the name already, Serve returns its address and backend.ErrExists. Another
// process that serves the same name takes it over for good. A connection does not count as use of the sandbox, as the
// command that makes it does.
//
// Which command a connection belongs to is known from the kernel of the sandbox. The sandbox is the boundary: of
// commands that share one, a hostile one can pass for another.
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
	err = s.call(ctx, true, func(ctx context.Context, conn *client.Conn) (err error) {
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
		_ = l.Close() // it only gives the service up
		cancel()
		return "", nil, errClosed
	}
	return l.Address(), func() { cancel(); <-v.ended }, nil
}

// check returns what is wrong with a service.
func (svc Service) check() error {
	switch {
	case wire.ServiceNetworks()[svc.Name] == "":
		return fmt.Errorf("%w: unknown service %q", backend.ErrInvalid, sanitize.Message(svc.Name))
	case svc.MaxConns < 0 || svc.MaxConns > wire.MaxConns:
		return fmt.Errorf("%w: service %s: MaxConns is %d, must be 1 to %d", backend.ErrInvalid, svc.Name, svc.MaxConns, wire.MaxConns)
	case svc.Handle == nil:
		return fmt.Errorf("%w: service %s has no Handle", backend.ErrInvalid, svc.Name)
	}
	return nil
}

func (svc Service) maxConns() int { return cmp.Or(svc.MaxConns, wire.MaxConns) }

// background runs f as a goroutine of the connection, unless the handle has closed.
func (s *Sandbox) background(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	s.wg.Go(f)
	return true
}

// servedService is a service that this process serves.
type servedService struct {
	addr string
	env  map[string]string
}

// served returns the address of a service that this process serves.
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
	if s.services == nil {
		s.services = map[string]servedService{}
	}
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
	slots chan struct{}   // held by open connections: the guest keeps count, but is not trusted to
}

func (v *serviceServer) listen(ctx context.Context, conn *client.Conn) (*client.Listener, error) {
	return conn.Listen(ctx, wire.ListenRequest{Name: v.svc.Name, MaxConns: v.svc.maxConns(), WaitMillis: connWait.Milliseconds()})
}

// run serves until the service is stopped or taken over, or the guest breaks the protocol.
func (v *serviceServer) run(l *client.Listener) {
	defer close(v.ended)
	defer v.s.dropService(v.svc.Name)
	for l != nil {
		err := v.serve(l)
		_ = l.Close() // it has ended, this waits for its goroutines
		if v.ctx.Err() != nil {
			return
		}
		if !errors.Is(err, client.ErrConnLost) {
			level := slog.LevelWarn
			if v.s.o.Shared { // they take it over from each other
				level = slog.LevelDebug
			}
			v.s.o.Logger.Log(v.ctx, level, "service ended", "sandbox", v.s.o.ID, "service", v.svc.Name, "error", sanitize.Message(err.Error()))
			return
		}
		l = v.relisten()
	}
}

// serve accepts until the listener ends.
func (v *serviceServer) serve(l *client.Listener) error {
	for {
		peer, err := l.Accept(v.ctx)
		if err != nil {
			return err
		}
		if !v.take(peer) {
			_ = peer.Close() // it is refused
			bound.Pause(v.ctx, refusedPause)
		}
	}
}

// relisten listens on a new connection to the guest; nil when there is none any more.
func (v *serviceServer) relisten() *client.Listener {
	for interval := redialFirst; ; interval = min(2*interval, redialLongest) {
		conn, err := v.s.connection(v.ctx)
		if err == nil {
			var l *client.Listener
			if l, err = v.listen(v.ctx, conn); err == nil {
				return l
			}
		}
		if errors.Is(err, backend.ErrLost) || errors.Is(err, client.ErrProtocol) || !bound.Pause(v.ctx, interval) {
			return nil
		}
	}
}

// take serves a connection, and reports whether it may be served.
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

// handle calls the service's Handle with a context that ends with the service and with life.
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
	stop := context.AfterFunc(ctx, func() { defer closing.Done(); _ = c.Close() }) // frees a Handle that reads or writes
	v.svc.Handle(ctx, c)
	if stop() {
		closing.Done()
	}
	closing.Wait()
	_ = c.Close() // it is over; a second time is no error
}

// latestCall returns a context with the values of the call that started the latest command, which never ends.
func (s *Sandbox) latestCall() context.Context {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.latest == nil {
		return context.Background()
	}
	return s.latest
}

// grant permits a command that is about to be started to connect to services. The caller calls settle when the call
// that starts it has returned.
func (s *Sandbox) grant(execID string, services []ServiceGrant, span trace.SpanContext) (settle func(), err error) {
	if len(services) == 0 {
		return func() {}, nil
	}
	g := &grant{services: slices.Clone(services), span: span}
	g.ctx, g.end = context.WithCancel(s.ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.grants == nil {
		s.grants = map[string]*grant{}
	}
	s.grants[execID] = g
	return func() {
		if !s.background(func() { s.outlive(execID, g) }) {
			g.end()
		}
	}, nil
}

// granted returns the grant of a command, and its value for a service.
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

// outlive ends a grant when nothing is left of its command.
func (s *Sandbox) outlive(execID string, g *grant) {
	defer g.end()
	for interval := redialFirst; ; interval = min(2*interval, redialLongest) {
		conn, err := s.connection(s.ctx)
		if err == nil {
			_, err = conn.Wait(s.ctx, wire.WaitRequest{ExecID: execID, WaitMillis: -1, Tree: true})
		}
		var refused *wire.Error
		if err == nil || errors.As(err, &refused) || errors.Is(err, client.ErrProtocol) || errors.Is(err, backend.ErrLost) {
			break // it has ended, or never began
		}
		if !bound.Pause(s.ctx, interval) {
			break
		}
	}
	g.end()
	bound.Pause(s.ctx, grantLinger)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.grants, execID)
}

// serviceNames returns the names of what is granted.
func serviceNames(grants []ServiceGrant) []string {
	var names []string
	for _, g := range grants {
		names = append(names, g.Name)
	}
	return names
}

// patience ends a call that the guest should have answered long ago.
type patience struct {
	due   time.Time
	timer *time.Timer
}

// patient bounds the call that waits for a command, by limit and what Command.Extend adds to it.
func (s *Sandbox) patient(ctx context.Context, execID string, limit time.Duration) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	p := &patience{due: time.Now().Add(limit), timer: time.AfterFunc(limit, func() { cancel(errNoAnswer) })}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waits == nil {
		s.waits = map[string]*patience{}
	}
	s.waits[execID] = p
	return ctx, func() {
		p.timer.Stop()
		cancel(nil)
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.waits, execID)
	}
}

// waitLonger has the call that waits for a command wait longer.
func (s *Sandbox) waitLonger(execID string, by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.waits[execID]; p != nil {
		p.due = p.due.Add(by)
		p.timer.Reset(time.Until(p.due))
	}
}
