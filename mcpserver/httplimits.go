package mcpserver

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"context"

	"github.com/modelcontextprotocol/go-sdk/auth"
)

// Token is a client's bearer token. Clients with the same name are one owner.
type Token struct {
	Name   string // letters, digits, '.', '_' and '-'; shows in logs
	Secret string // at least 16 bytes
	// Expires ends the token. Zero is never.
	Expires time.Time
}

const minSecretBytes = 16

// keyring checks tokens. Comparing digests takes the same time wherever a guess goes wrong.
type keyring struct {
	tokens []heldToken
}

type heldToken struct {
	name    string
	digest  [sha256.Size]byte
	expires time.Time
}

// newKeyring gives nil without tokens.
func newKeyring(tokens []Token) (*keyring, error) {
	if len(tokens) == 0 {
		return nil, nil
	}
	k := &keyring{}
	for i, t := range tokens {
		switch {
		case !validSessionID(t.Name) || t.Name == localOwner:
			return nil, fmt.Errorf("token %d: %q cannot be the name of an owner", i+1, clip(t.Name))
		case len(t.Secret) < minSecretBytes:
			return nil, fmt.Errorf("token %d (%s): a token needs at least %d characters", i+1, t.Name, minSecretBytes)
		}
		k.tokens = append(k.tokens, heldToken{t.Name, sha256.Sum256([]byte(t.Secret)), t.Expires})
	}
	return k, nil
}

// require lets requests with a token through, with its owner in their context.
func (k *keyring) require(next http.Handler) http.Handler {
	return auth.RequireBearerToken(func(_ context.Context, secret string, _ *http.Request) (*auth.TokenInfo, error) {
		digest := sha256.Sum256([]byte(secret))
		found := -1
		for i, t := range k.tokens {
			if subtle.ConstantTimeCompare(digest[:], t.digest[:]) == 1 {
				found = i
			}
		}
		if found < 0 {
			return nil, auth.ErrInvalidToken
		}
		return &auth.TokenInfo{UserID: k.tokens[found].name, Expiration: k.tokens[found].expires}, nil
	}, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(next)
}

// rates are token buckets by client.
type rates struct {
	perSecond float64
	burst     float64

	mu      sync.Mutex // guards buckets
	buckets map[string]*bucket
}

type bucket struct {
	left float64
	at   time.Time
}

// maxBuckets bounds what is remembered of clients; a full bucket is as good as none.
const maxBuckets = 4096

func newRates(perSecond int) *rates {
	return &rates{perSecond: float64(perSecond), burst: 2 * float64(perSecond), buckets: map[string]*bucket{}}
}

// take tells whether one more request of the client is within its rate.
func (r *rates) take(client string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	b := r.buckets[client]
	if b == nil {
		if len(r.buckets) >= maxBuckets {
			r.drop(now)
		}
		b = &bucket{left: r.burst, at: now}
		r.buckets[client] = b
	}
	b.left = min(r.burst, b.left+now.Sub(b.at).Seconds()*r.perSecond)
	b.at = now
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

// drop forgets clients whose buckets are full again; mu is held. When none is, it forgets all, which errs on the side of
// clients.
func (r *rates) drop(now time.Time) {
	for name, b := range r.buckets {
		if b.left+now.Sub(b.at).Seconds()*r.perSecond >= r.burst {
			delete(r.buckets, name)
		}
	}
	if len(r.buckets) >= maxBuckets {
		clear(r.buckets)
	}
}

// slots bounds the requests of each client that are under way.
type slots struct {
	most int

	mu    sync.Mutex // guards taken
	taken map[string]int
}

func newSlots(most int) *slots { return &slots{most: most, taken: map[string]int{}} }

// enter counts a request in; leave must be called when ok.
func (s *slots) enter(client string) (leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken[client] >= s.most {
		return nil, false
	}
	s.taken[client]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.taken[client]--; s.taken[client] == 0 {
			delete(s.taken, client)
		}
	}, true
}

// cappedListener bounds the open connections. One more is told so and closed: left in the kernel's queue it would wait,
// and so would the health check.
type cappedListener struct {
	net.Listener
	places chan struct{}
}

func newCappedListener(l net.Listener, most int) *cappedListener {
	return &cappedListener{Listener: l, places: make(chan struct{}, most)}
}

// refusalTimeout bounds the sending of a refusal.
const refusalTimeout = time.Second

func (l *cappedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.places <- struct{}{}:
			return &cappedConn{Conn: conn, leave: sync.OnceFunc(func() { <-l.places })}, nil
		default:
			refuse(conn)
		}
	}
}

// refuse answers a connection that is one too many. Its fresh socket buffer takes the few bytes without waiting.
func refuse(conn net.Conn) {
	if _, plain := conn.(*net.TCPConn); plain {
		_ = conn.SetDeadline(time.Now().Add(refusalTimeout)) // best effort, like the rest of it
		_, _ = conn.Write([]byte("HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"))
	}
	conn.Close() // nothing to lose
}

type cappedConn struct {
	net.Conn
	leave func()
}

// Close gives the place back.
func (c *cappedConn) Close() error {
	err := c.Conn.Close()
	c.leave()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}
