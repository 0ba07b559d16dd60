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

// maxClients is the maximum number of remembered clients without running requests.
const maxClients = 4096

// kind is a kind of limited resource.
type kind int

const (
	requests kind = iota
	sessions
	bodyBytes
	kinds
)

// limit is the maximum amount of a resource for each client and for all clients together.
type limit struct {
	what      string // name in refusals
	each, all int64
}

// limiter enforces the request rate and the resource limits of clients.
type limiter struct {
	rate   int
	limits [kinds]limit

	mu      sync.Mutex // guards the fields below
	clients map[string]*usage
	held    [kinds]int64
	ended   bool
	drained chan struct{} // closed when the limiter has ended and no request is running
}

// usage is the current usage of one client.
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
			// One client may use a quarter, but always at least one message.
			bodyBytes: {"bytes of concurrent messages", max(o.MaxBodyBytes/4, MaxMessageBytes+1), o.MaxBodyBytes},
		},
	}
}

// refusal is the answer to a request that is refused because of a limit.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

func (r *refusal) write(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, r.text, r.status)
}

// of returns the usage of a client. The caller must hold mu.
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

// ask counts one request of the client against its rate. It returns a refusal if the client exceeds its rate.
func (l *limiter) ask(client string) *refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.of(client).rate.Allow() {
		return &refusal{http.StatusTooManyRequests, "too many requests"}
	}
	return nil
}

// take reserves n of a resource, or returns a refusal. The caller must return the amount with give exactly once.
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

// give returns n of a resource.
func (l *limiter) give(client string, k kind, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(client).held[k] -= n
	l.held[k] -= n
	if k == requests && l.ended && l.held[requests] == 0 {
		close(l.drained)
	}
}

// end refuses all further requests. It must be called only once.
func (l *limiter) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended = true; l.held[requests] == 0 {
		close(l.drained)
	}
}

// meteredBody counts received bytes, not announced bytes. Therefore, a client that announces much and sends nothing
// uses no memory of other clients.
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

// free releases the counted bytes. It may be called more than once.
func (b *meteredBody) free() {
	b.limiter.give(b.client, bodyBytes, b.taken)
	b.taken = 0
}

// place is a reserved slot for one session of a client. It is reserved before the SDK creates the session, so that many
// concurrent new sessions cannot exceed the limit.
type place struct {
	settled atomic.Bool // the place belongs to its session, or is released
	give    func()
}

// reserve returns a place for a new session, or a refusal.
func (l *limiter) reserve(client string) (*place, *refusal) {
	if no := l.take(client, sessions, 1); no != nil {
		return nil, no
	}
	return &place{give: func() { l.give(client, sessions, 1) }}, nil
}

// bind transfers the place to its session, which must release it at its end. It returns false if the request that
// reserved the place has already ended. In that case, the client disconnected and never received the session's id.
func (p *place) bind() bool { return !p.settled.Swap(true) }

// done ends the request that reserved the place. If the place has no session, done releases it.
func (p *place) done() {
	if !p.settled.Swap(true) {
		p.give()
	}
}
