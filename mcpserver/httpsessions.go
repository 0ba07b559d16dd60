package mcpserver

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// methodInitialize begins a session, methodInitialized says that its client is ready.
const (
	methodInitialize  = "initialize"
	methodInitialized = "notifications/initialized"
)

// seats bound the open MCP sessions, of all clients and of each. A session has its seat before the SDK makes it, so that
// many that begin at once are not too many. One that its client never uses ends soon.
type seats struct {
	most, each int
	unused     time.Duration // how long a session may wait for its first use

	mu    sync.Mutex // guards the fields below, and those of every seat
	total int
	taken map[string]int
	byID  map[string]*seat
}

// seat is the place of one session.
type seat struct {
	seats   *seats
	client  string
	session *mcp.ServerSession // nil until there is one
	timer   *time.Timer        // ends the session when it is not used
	free    bool               // it was given back
}

func newSeats(most, each int, unused time.Duration) *seats {
	return &seats{most: most, each: each, unused: unused, taken: map[string]int{}, byID: map[string]*seat{}}
}

// take gives a seat, or the HTTP status and text of the refusal. release must be called once the request has been
// answered; it takes back a seat that got no session.
func (s *seats) take(client string) (got *seat, status int, refusal string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.taken[client] >= s.each:
		return nil, http.StatusTooManyRequests, fmt.Sprintf("you have %d sessions, which is the limit of one client; end one with DELETE", s.each)
	case s.total >= s.most:
		return nil, http.StatusServiceUnavailable, fmt.Sprintf("there are %d sessions, which is the limit of this server", s.most)
	}
	s.total++
	s.taken[client]++
	return &seat{seats: s, client: client}, 0, ""
}

// release takes back a seat without session.
func (p *seat) release() {
	p.seats.mu.Lock()
	defer p.seats.mu.Unlock()
	if p.session == nil {
		p.leave()
	}
}

// leave counts a seat out, once; mu is held.
func (p *seat) leave() {
	if p.free {
		return
	}
	p.free = true
	s := p.seats
	s.total--
	if s.taken[p.client]--; s.taken[p.client] == 0 {
		delete(s.taken, p.client)
	}
}

// seated gives a session its seat until it ends, which ServeHTTP's end sees to. A session whose client went away before
// that has no seat any more, and nobody knows its id: it ends.
func (p *seat) seated(ss *mcp.ServerSession) {
	s := p.seats
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case p.session != nil:
		return // a client may shake hands twice
	case p.free:
		go func() { _ = ss.Close() }() // waits for the call that this is part of
		return
	}
	p.session = ss
	p.timer = time.AfterFunc(s.unused, func() { _ = ss.Close() }) // its end is all that is wanted
	s.byID[ss.ID()] = p
	go func() {
		_ = ss.Wait() // how it ended changes nothing
		s.mu.Lock()
		defer s.mu.Unlock()
		p.timer.Stop()
		delete(s.byID, ss.ID())
		p.leave()
	}()
}

// use notes that a session is used, so that it lives until it is idle.
func (s *seats) use(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.byID[id]; p != nil {
		p.timer.Stop()
	}
}

type seatKey struct{}

// seatSessions is middleware: it ties a new session to the seat of the request that began it. Context values of that
// request are in every later one of the session.
func seatSessions(next mcp.MethodHandler) mcp.MethodHandler {
	return func(ctx context.Context, method string, req mcp.Request) (mcp.Result, error) {
		res, err := next(ctx, method, req)
		if err != nil || method != methodInitialize {
			return res, err
		}
		p, _ := ctx.Value(seatKey{}).(*seat)
		if ss, ok := req.GetSession().(*mcp.ServerSession); ok && p != nil {
			p.seated(ss)
		}
		return res, nil
	}
}

// admitSession sees to the session of a message: a new one needs a seat, an open one is used. When it is refused,
// that was told. done must be called when the request has been answered.
func (f *front) admitSession(w http.ResponseWriter, r *http.Request, client string, msg jsonrpc.Message) (_ *http.Request, done func(), ok bool) {
	method, id := "", r.Header.Get(headerSession)
	if req, isCall := msg.(*jsonrpc.Request); isCall {
		method = req.Method
	}
	switch {
	case id != "" && method != methodInitialize && method != methodInitialized:
		f.seats.use(id)
		return r, func() {}, true
	case id != "" || method != methodInitialize:
		return r, func() {}, true
	}
	p, status, refusal := f.seats.take(client)
	if p == nil {
		w.Header().Set("Retry-After", "10")
		http.Error(w, refusal, status)
		return r, nil, false
	}
	return r.WithContext(context.WithValue(r.Context(), seatKey{}, p)), p.release, true
}
