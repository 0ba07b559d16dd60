package mcpserver

import (
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// maxClients bounds what is remembered of clients that have nothing under way.
const maxClients = 4096

// kind is a kind of thing of which clients have a limited number under way.
type kind int

const (
	requests kind = iota
	sessions
	bodyBytes
	kinds
)

// limit is how much of a kind one client, and all clients together, may have.
type limit struct {
	what      string // for refusals
	each, all int64
}

// limiter holds clients to their rate and to the limits of what they have under way.
type limiter struct {
	rate   int
	limits [kinds]limit

	mu      sync.Mutex // guards the fields below
	clients map[string]*usage
	held    [kinds]int64
	ended   bool
	drained chan struct{} // closed when the limiter has ended and no request is under way
}

// usage is what one client has under way.
type usage struct {
	rate *rate.Limiter
	held [kinds]int64
}

func newLimiter(o HTTPOptions) *limiter {
	return &limiter{
		rate: o.Rate, clients: map[string]*usage{}, drained: make(chan struct{}),
		limits: [kinds]limit{
			requests: {"concurrent requests", int64(o.MaxRequests), math.MaxInt64},
			sessions: {"sessions", int64(o.MaxOwnerSessions), int64(o.MaxSessions)},
			// A quarter for one client, but always one message.
			bodyBytes: {"bytes of concurrent messages", max(o.MaxBodyBytes/4, MaxMessageBytes+1), o.MaxBodyBytes},
		},
	}
}

// refusal is the answer to a request that is not served now.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

func (r *refusal) write(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, r.text, r.status)
}

// of returns the usage of a client; mu is held.
func (l *limiter) of(client string) *usage {
	u := l.clients[client]
	if u == nil {
		if len(l.clients) >= maxClients {
			maps.DeleteFunc(l.clients, func(_ string, u *usage) bool { return u.held == [kinds]int64{} })
		}
		u = &usage{rate: rate.NewLimiter(rate.Limit(l.rate), 2*l.rate)}
		l.clients[client] = u
	}
	return u
}

// ask counts one more request of the client against its rate, and returns the refusal of one that comes too soon.
func (l *limiter) ask(client string) *refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.of(client).rate.Allow() {
		return &refusal{http.StatusTooManyRequests, "too many requests"}
	}
	return nil
}

// take counts n more of a kind in, or returns the refusal. What was taken must be given back once.
func (l *limiter) take(client string, k kind, n int64) *refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	u, limit := l.of(client), l.limits[k]
	switch {
	case l.ended:
		return &refusal{http.StatusServiceUnavailable, "the server is shutting down"}
	case u.held[k]+n > limit.each:
		return &refusal{http.StatusTooManyRequests, fmt.Sprintf("too many %s: the limit per client is %d", limit.what, limit.each)}
	case l.held[k]+n > limit.all:
		return &refusal{http.StatusServiceUnavailable, fmt.Sprintf("too many %s: the limit for all clients is %d", limit.what, limit.all)}
	}
	u.held[k] += n
	l.held[k] += n
	return nil
}

// give counts n of a kind out again.
func (l *limiter) give(client string, k kind, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(client).held[k] -= n
	l.held[k] -= n
	if k == requests && l.ended && l.held[requests] == 0 {
		close(l.drained)
	}
}

// end lets nothing more in. It must be called once.
func (l *limiter) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended = true; l.held[requests] == 0 {
		close(l.drained)
	}
}

// meteredBody is a body whose bytes count as they come, not as they are announced: a client that announces much and
// sends nothing takes nothing from others.
type meteredBody struct {
	io.Reader
	limiter *limiter
	client  string
	taken   int64
}

func (b *meteredBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if no := b.limiter.take(b.client, bodyBytes, int64(n)); no != nil {
		return 0, no
	}
	b.taken += int64(n)
	return n, err
}

// free gives the bytes back. It may be called again.
func (b *meteredBody) free() {
	b.limiter.give(b.client, bodyBytes, b.taken)
	b.taken = 0
}

// place is the place of one session among those that its client may have. It is reserved before the SDK makes the
// session, so that many sessions that begin at once are not too many.
type place struct {
	settled atomic.Bool // it belongs to its session, or is free again
	give    func()
}

// reserve returns a place for a new session, or the refusal.
func (l *limiter) reserve(client string) (*place, *refusal) {
	if no := l.take(client, sessions, 1); no != nil {
		return nil, no
	}
	return &place{give: func() { l.give(client, sessions, 1) }}, nil
}

// bind leaves the place to its session, which is to give it back when it ends. It reports false when the request that
// the place was reserved for is over already: its client went away, and nobody knows the id of the session.
func (p *place) bind() bool { return !p.settled.Swap(true) }

// done ends the request that the place was reserved for: without a session the place is free again.
func (p *place) done() {
	if !p.settled.Swap(true) {
		p.give()
	}
}
