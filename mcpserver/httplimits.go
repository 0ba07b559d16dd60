package mcpserver

import (
	"io"
	"math"
	"sync/atomic"

	"github.com/workcell-dev/workcell/internal/httpguard"
)

// Further kinds of limited resources.
const (
	sessions httpguard.Kind = iota + httpguard.Requests + 1
	bodyBytes
)

func newLimiter(o HTTPOptions) *httpguard.Limiter {
	share := max(o.MaxBodyBytes/4, MaxMessageBytes+1) // one client can always send one message
	return httpguard.NewLimiter(o.Rate,
		httpguard.Limit{What: "concurrent requests", Each: int64(o.MaxRequests), All: math.MaxInt64},
		httpguard.Limit{What: "sessions", Each: int64(o.MaxOwnerSessions), All: int64(o.MaxSessions)},
		httpguard.Limit{What: "bytes of concurrent messages", Each: share, All: o.MaxBodyBytes})
}

// meteredBody counts received bytes, not announced bytes. Otherwise, a client could use the memory of other clients
// without sending anything.
type meteredBody struct {
	io.Reader
	limiter *httpguard.Limiter
	client  string
	taken   int64
}

func (b *meteredBody) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if refusal := b.limiter.Take(b.client, bodyBytes, int64(n)); refusal != nil {
		return 0, refusal
	}
	b.taken += int64(n)
	return n, err
}

// free releases the counted bytes. It may be called more than once.
func (b *meteredBody) free() {
	b.limiter.Give(b.client, bodyBytes, b.taken)
	b.taken = 0
}

// place is a reserved slot for one session of a client. It is reserved before the SDK creates the session, to prevent
// many concurrent new sessions from exceeding the limit.
type place struct {
	settled atomic.Bool // the place belongs to a session, or is released
	give    func()
}

// reserve returns a place for a new session, or a refusal.
func reserve(l *httpguard.Limiter, client string) (*place, *httpguard.Refusal) {
	if refusal := l.Take(client, sessions, 1); refusal != nil {
		return nil, refusal
	}
	return &place{give: func() { l.Give(client, sessions, 1) }}, nil
}

// bind transfers the place to a session, which must release it at the end. It returns false if the reserving request
// has already ended. In that case, the client disconnected and never received the session's id.
func (p *place) bind() bool { return !p.settled.Swap(true) }

// done ends the reserving request. If the place has no session, done releases it.
func (p *place) done() {
	if !p.settled.Swap(true) {
		p.give()
	}
}
