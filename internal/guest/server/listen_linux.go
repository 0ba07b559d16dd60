package server

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/workcell-dev/workcell/internal/guest/proc"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"golang.org/x/sys/unix"
)

// Limits for connections to a service, in addition to the limits of the listener.
const (
	maxExecConns    = 16 // open connections of a command
	maxWaitingConns = 64 // connections not accepted by a host
)

// service receives connections of commands to one name, and passes each connection to a host waiting in accept-v1.
type service struct {
	s       *Server
	name    string
	network string
	handoff chan *serviceConn
	closed  chan struct{}

	mu      sync.Mutex     // guards the fields below
	ln      net.Listener   // nil until it listens; constant afterwards
	owner   *ownership     // last listening host; may be nil
	most    int            // maximum number of open connections for the latest host
	wait    time.Duration  // maximum time until an accept; zero if no host is expected
	open    int            // number of connections, including waiting connections
	waiting int            // number of waiting connections
	ofExec  map[string]int // open connections by command
}

// ownership is a host's right to accept connections.
type ownership struct {
	sv     *service
	mux    *yamux.Session
	stream uint32         // ID of the stream with the host's request
	over   chan struct{}  // closed when the ownership has ended
	parked sync.WaitGroup // requests waiting for a connection; added with the service's mu held
}

// end ends the ownership. Afterwards, no request of the host can take a connection of another host.
func (o *ownership) end() {
	o.sv.mu.Lock() // park adds no requests after this
	if !closed(o.over) {
		close(o.over)
	}
	o.sv.mu.Unlock()
	o.parked.Wait()
}

// serviceConn is a connection of a command.
type serviceConn struct {
	net.Conn
	sv      *service
	who     wire.Accepted
	unwatch func() // must be called after receiving from handoff
}

// openServices creates the services. It binds Unix sockets immediately, to prevent commands from binding them first.
func (s *Server) openServices() map[string]*service {
	all := map[string]*service{}
	for name, network := range wire.ServiceNetworks() {
		sv := &service{s: s, name: name, network: network, handoff: make(chan *serviceConn),
			closed: make(chan struct{}), ofExec: map[string]int{}}
		all[name] = sv
		if network == "unix" {
			if err := sv.bind(); err != nil {
				s.logf("no service %s: %v", name, err) // listen-v1 tries again
			}
		}
	}
	return all
}

// bind starts listening. If the sandbox has a separate network namespace, the socket's name is unique in it. If the
// guest agent is not the first process of a sandbox, or if the name is taken, it shares the namespace with others and
// uses another unique name.
func (sv *service) bind() error {
	ln, err := sv.listen()
	if err != nil {
		return err
	}
	sv.ln = ln
	go sv.serve(ln)
	return nil
}

// listen does not use net.Listen, to avoid linking the DNS resolver.
func (sv *service) listen() (net.Listener, error) {
	if sv.network == "tcp" {
		return net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	}
	name := "@workcell-" + sv.name
	if os.Getpid() == 1 {
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
		if !errors.Is(err, unix.EADDRINUSE) {
			return ln, err
		}
	}
	return net.ListenUnix("unix", &net.UnixAddr{Name: name + "-" + sv.s.bootID, Net: "unix"})
}

// serve accepts connections until the listener is closed.
func (sv *service) serve(ln net.Listener) {
	for {
		conn, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(acceptPause) // temporarily out of memory or descriptors
			continue
		}
		c := &serviceConn{Conn: conn, sv: sv}
		c.identify()
		sv.admit(c)
	}
}

// identify finds the command of the connecting process by the process's tag. A process outside of the sandbox has no
// process ID in it. TCP connections have no identity.
func (c *serviceConn) identify() {
	conn, ok := c.Conn.(*net.UnixConn)
	if !ok {
		return
	}
	pid, err := wire.PeerPID(conn)
	if err != nil || pid <= 0 {
		return
	}
	c.who.PID = pid
	tag, ok := c.sv.s.spawner.TagOf(c.who.PID)
	if !ok {
		return
	}
	e := c.sv.s.execs.find(tag)
	if e != nil && slices.Contains(e.granted, c.sv.name) && !peerGone(conn) {
		c.who.ExecID = e.id
	}
}

// admit offers a connection to the hosts if it is permitted.
func (sv *service) admit(c *serviceConn) {
	if !sv.enter(c.who.ExecID) {
		_ = c.Conn.Close() // not granted, over a limit, or no listener
		return
	}
	go func() {
		defer sv.s.guard("a connection")
		var id [8]byte
		_, _ = rand.Read(id[:]) // documented to never fail
		c.who.ConnID = hex.EncodeToString(id[:])
		if c.who.PID > 0 {
			c.who.Program = proc.Program(c.who.PID)
		}
		sv.offer(c)
	}()
}

// enter adds a waiting connection of a command to the counts.
func (sv *service) enter(exec string) bool {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	if sv.wait == 0 || sv.open >= sv.most || sv.waiting >= maxWaitingConns {
		return false
	}
	if sv.network == "unix" {
		if exec == "" || sv.ofExec[exec] >= maxExecConns {
			return false
		}
		sv.ofExec[exec]++
	}
	sv.open++
	sv.waiting++
	return true
}

// offer keeps a waiting connection until a host accepts it, for at most the time specified by hosts.
func (sv *service) offer(c *serviceConn) {
	sv.mu.Lock()
	late := time.After(sv.wait)
	sv.mu.Unlock()
	defer sv.countWaiting(-1)
	var hungUp <-chan struct{}
	hungUp, c.unwatch = watchHangup(c.Conn)
	select {
	case sv.handoff <- c:
		return
	case <-hungUp:
	case <-late:
	case <-sv.closed:
	}
	c.unwatch()
	c.end()
}

// watchHangup returns a channel, closed when a process has closed the Unix connection. release ends the watch. The
// connection can only be read after release.
func watchHangup(c net.Conn) (hungUp <-chan struct{}, release func()) {
	conn, ok := c.(*net.UnixConn)
	if !ok {
		return nil, func() {}
	}
	ended := make(chan struct{})
	go func() { AwaitHangup(conn); close(ended) }()
	return ended, func() {
		_ = conn.SetReadDeadline(time.Unix(1, 0)) // fails if the connection is closed, which also ends the watch
		<-ended
		_ = conn.SetReadDeadline(time.Time{})
	}
}

func (sv *service) countWaiting(by int) {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	sv.waiting += by
}

// end closes a connection and removes it from the counts.
func (c *serviceConn) end() {
	_ = c.Conn.Close() // no data can be lost
	c.sv.mu.Lock()
	defer c.sv.mu.Unlock()
	c.sv.open--
	c.sv.ofExec[c.who.ExecID]--
	if c.sv.ofExec[c.who.ExecID] <= 0 { // negative for TCP, which does not count
		delete(c.sv.ofExec, c.who.ExecID)
	}
}

// close closes the service.
func (sv *service) close() {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	close(sv.closed)
	if sv.ln != nil {
		_ = sv.ln.Close() // ends serve
	}
}

// own makes a host the owner of new connections, replaces the previous host, and returns the address for commands.
func (sv *service) own(r *request, req *wire.ListenRequest) (*ownership, string, error) {
	o := &ownership{sv: sv, mux: r.mux, stream: r.StreamID(), over: make(chan struct{})}
	sv.mu.Lock()
	var err error
	if sv.ln == nil {
		err = sv.bind()
	}
	before := sv.owner
	if err == nil {
		sv.owner, sv.most, sv.wait = o, req.MaxConns, time.Duration(req.WaitMillis)*time.Millisecond
	}
	sv.mu.Unlock()
	if err != nil {
		return nil, "", wire.Errorf(wire.CodeUnsupported, "listening as %s: %v", sv.name, err)
	}
	if before != nil {
		before.end()
	}
	return o, sv.ln.Addr().String(), nil
}

// park registers a host's request for a connection. If the host does not own the service, or the request is a late one
// of an earlier listener of the host, park returns nil.
func (sv *service) park(mux *yamux.Session, listen uint32) *ownership {
	sv.mu.Lock()
	defer sv.mu.Unlock()
	if o := sv.owner; o != nil && o.mux == mux && (listen == 0 || listen == o.stream) && !closed(o.over) {
		o.parked.Add(1)
		return o
	}
	return nil
}

// checkServices rejects unknown service names.
func (s *Server) checkServices(names []string) error {
	for _, name := range names {
		if s.services[name] == nil {
			return wire.Errorf(wire.CodeInvalid, "unknown service %.40q", name)
		}
	}
	return nil
}

// handleListen keeps a host the owner of a service until the host disconnects or another host replaces it.
func (s *Server) handleListen(r *request, req *wire.ListenRequest) error {
	sv := s.services[req.Name]
	switch {
	case sv == nil:
		return wire.Errorf(wire.CodeUnsupported, "unknown service %.40q", req.Name)
	case req.MaxConns < 1 || req.MaxConns > wire.MaxConns:
		return wire.Errorf(wire.CodeInvalid, "max_conns is %d, it must be 1 to %d", req.MaxConns, wire.MaxConns)
	case req.WaitMillis < 1 || req.WaitMillis > wire.MaxConnWait:
		return wire.Errorf(wire.CodeInvalid, "wait_ms is %d, it must be 1 to %d", req.WaitMillis, wire.MaxConnWait)
	}
	o, address, err := sv.own(r, req)
	if err != nil {
		return err
	}
	defer o.end()
	if err := r.Answer(wire.ListenResult{Address: address}); err != nil {
		return err
	}
	left := r.watch(nil)
	defer r.Release()
	select {
	case <-left:
	case <-o.over:
	}
	return nil
}
