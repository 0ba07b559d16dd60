package httpguard

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"

	"golang.org/x/time/rate"
)

// maxClients is the maximum number of remembered clients without running requests.
const maxClients = 4096

// Kind is a kind of limited resource: an index in the limits of NewLimiter.
type Kind int

// Requests are the running requests, the first limit of every Limiter. End waits for them.
const Requests Kind = 0

// Limit is the maximum amount of a resource for each client and for all clients together.
type Limit struct {
	What      string // name in refusals
	Each, All int64
}

// Limiter enforces the request rate and the resource limits of clients. It is safe for concurrent use.
type Limiter struct {
	Drained chan struct{} // closed when the limiter has ended and no request is running

	rate   int
	limits []Limit

	mu      sync.Mutex // guards the fields below
	clients map[string]*usage
	held    []int64
	ended   bool
}

// usage is the current usage of one client.
type usage struct {
	rate *rate.Limiter
	held []int64
}

// NewLimiter returns a Limiter. Each client can send perSecond requests per second, and twice as many in a burst.
func NewLimiter(perSecond int, limits ...Limit) *Limiter {
	return &Limiter{
		rate: perSecond, limits: limits, clients: map[string]*usage{}, held: make([]int64, len(limits)),
		Drained: make(chan struct{}),
	}
}

// Refusal is the answer to a request refused because of a limit.
type Refusal struct {
	Status int
	Text   string
}

func (r *Refusal) Error() string { return r.Text }

// Write writes the answer.
func (r *Refusal) Write(w http.ResponseWriter) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, r.Text, r.Status)
}

// of returns the usage of a client. The caller must hold mu.
func (l *Limiter) of(client string) *usage {
	u := l.clients[client]
	if u == nil {
		if len(l.clients) >= maxClients {
			maps.DeleteFunc(l.clients, func(_ string, u *usage) bool {
				return !slices.ContainsFunc(u.held, func(n int64) bool { return n != 0 })
			})
		}
		u = &usage{rate: rate.NewLimiter(rate.Limit(l.rate), 2*l.rate), held: make([]int64, len(l.limits))}
		l.clients[client] = u
	}
	return u
}

// Ask counts one request of the client against the client's rate. It returns a refusal above the rate.
func (l *Limiter) Ask(client string) *Refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.of(client).rate.Allow() {
		return &Refusal{http.StatusTooManyRequests, "too many requests"}
	}
	return nil
}

// Take reserves n of a resource, or returns a refusal. The caller must return the amount with Give exactly once.
func (l *Limiter) Take(client string, k Kind, n int64) *Refusal {
	l.mu.Lock()
	defer l.mu.Unlock()
	u, limit := l.of(client), l.limits[k]
	switch {
	case l.ended:
		return &Refusal{http.StatusServiceUnavailable, "the server is shutting down"}
	case u.held[k]+n > limit.Each:
		return &Refusal{http.StatusTooManyRequests,
			fmt.Sprintf("too many %s: the limit per client is %d", limit.What, limit.Each)}
	case l.held[k]+n > limit.All:
		return &Refusal{http.StatusServiceUnavailable,
			fmt.Sprintf("too many %s: the limit for all clients is %d", limit.What, limit.All)}
	}
	u.held[k] += n
	l.held[k] += n
	return nil
}

// Give returns n of a resource.
func (l *Limiter) Give(client string, k Kind, n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.of(client).held[k] -= n
	l.held[k] -= n
	if k == Requests && l.ended && l.held[Requests] == 0 {
		close(l.Drained)
	}
}

// End refuses all further requests. It must be called only once.
func (l *Limiter) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended = true; l.held[Requests] == 0 {
		close(l.Drained)
	}
}
