package mcpserver

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/time/rate"
)

// maxClients bounds what is remembered of clients that have nothing under way.
const maxClients = 4096

// limiter bounds what clients have under way, each by itself and all together.
type limiter struct {
	opts HTTPOptions

	mu       sync.Mutex // guards the fields below
	clients  map[string]*usage
	requests int
	sessions int
	bytes    int64
	ended    bool
	drained  chan struct{} // closed when the limiter has ended and no request is under way
}

// usage is what one client has under way.
type usage struct {
	rate               *rate.Limiter
	requests, sessions int
	bytes              int64
}

func newLimiter(o HTTPOptions) *limiter {
	return &limiter{opts: o, clients: map[string]*usage{}, drained: make(chan struct{})}
}

// of returns the usage of a client; mu is held.
func (l *limiter) of(client string) *usage {
	u := l.clients[client]
	if u == nil {
		if len(l.clients) >= maxClients {
			maps.DeleteFunc(l.clients, func(_ string, u *usage) bool { return u.requests+u.sessions == 0 })
		}
		u = &usage{rate: rate.NewLimiter(rate.Limit(l.opts.Rate), 2*l.opts.Rate)}
		l.clients[client] = u
	}
	return u
}

// allow reports whether one more request of the client is within its rate.
func (l *limiter) allow(client string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of(client).rate.Allow()
}

// begin counts a request in, or returns the HTTP status and text of its refusal. end must be called unless it is nil.
func (l *limiter) begin(client string) (end func(), status int, refusal string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.of(client)
	switch {
	case l.ended:
		return nil, http.StatusServiceUnavailable, "the server ends"
	case u.requests >= l.opts.MaxRequests:
		return nil, http.StatusTooManyRequests, "too many requests at once"
	}
	u.requests++
	l.requests++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		u.requests--
		if l.requests--; l.ended && l.requests == 0 {
			close(l.drained)
		}
	}, 0, ""
}

// end lets no more requests in. It must be called once.
func (l *limiter) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended = true; l.requests == 0 {
		close(l.drained)
	}
}

// errNoRoom is the end of a body for which there is no room in memory.
var errNoRoom = errors.New("too many bytes of requests are under way")

// meteredBody is a body whose bytes count as they come, not as they are announced: a client that announces much and
// sends nothing takes nothing from others. It belongs to a request that is under way.
type meteredBody struct {
	io.Reader
	limiter *limiter
	client  string
	taken   int64
}

func (b *meteredBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if !b.take(int64(n)) {
		return 0, errNoRoom
	}
	return n, err
}

// take adds n bytes, and reports whether there is room for them. One client has a quarter of it, but always one message.
func (b *meteredBody) take(n int64) bool {
	l := b.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.of(b.client)
	if l.bytes+n > l.opts.MaxBodyBytes || u.bytes+n > max(l.opts.MaxBodyBytes/4, MaxMessageBytes+1) {
		return false
	}
	l.bytes += n
	u.bytes += n
	b.taken += n
	return true
}

// free returns the bytes back. It may be called again.
func (b *meteredBody) free() { b.take(-b.taken) }

// Phases of a reservation.
const (
	reservationOpen int32 = iota
	reservationBound
	reservationReleased
)

// reservation is the place of one session. A session has it before the SDK makes it, so that many sessions that begin at
// once are not too many.
type reservation struct {
	phase   atomic.Int32
	release func()
}

// reserve returns the place of a new session, or the HTTP status and text of its refusal.
func (l *limiter) reserve(client string) (_ *reservation, status int, refusal string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	u := l.of(client)
	switch {
	case u.sessions >= l.opts.MaxOwnerSessions:
		return nil, http.StatusTooManyRequests, fmt.Sprintf("you have %d sessions, which is the limit of one client; end one with DELETE", u.sessions)
	case l.sessions >= l.opts.MaxSessions:
		return nil, http.StatusServiceUnavailable, fmt.Sprintf("there are %d sessions, which is the limit of this server", l.sessions)
	}
	u.sessions++
	l.sessions++
	return &reservation{release: func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		u.sessions--
		l.sessions--
	}}, 0, ""
}

// done ends the request that the place was reserved for: without a session the place is free again.
func (r *reservation) done() {
	if r.phase.CompareAndSwap(reservationOpen, reservationReleased) {
		r.release()
	}
}

// bind keeps the place until the session ends. A session whose client went away before that has none, and its id is known
// to nobody: it ends.
func (r *reservation) bind(ss *mcp.ServerSession) {
	switch {
	case r.phase.CompareAndSwap(reservationOpen, reservationBound):
		go func() {
			_ = ss.Wait() // how it ended changes nothing
			r.release()
		}()
	case r.phase.Load() == reservationReleased:
		go func() { _ = ss.Close() }() // waits for the call that this is part of
	}
}
