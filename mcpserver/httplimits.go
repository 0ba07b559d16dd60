package mcpserver

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

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
	first := map[[sha256.Size]byte]int{}
	for i, t := range tokens {
		digest := sha256.Sum256([]byte(t.Secret))
		earlier, twice := first[digest]
		switch {
		case !validSessionID(t.Name) || t.Name == localOwner:
			return nil, fmt.Errorf("token %d: %q cannot be the name of an owner", i+1, clip(t.Name))
		case len(t.Secret) < minSecretBytes:
			return nil, fmt.Errorf("token %d (%s): a token needs at least %d characters", i+1, t.Name, minSecretBytes)
		case twice:
			return nil, fmt.Errorf("token %d (%s): it is the same as token %d (%s), so nobody could tell their owners apart", i+1, t.Name, earlier+1, tokens[earlier].Name)
		}
		first[digest] = i
		k.tokens = append(k.tokens, heldToken{t.Name, digest, t.Expires})
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

	mu    sync.Mutex // guards the fields below
	taken map[string]int
	ended bool
	empty chan struct{} // closed when no more are to come and none is under way
}

func newSlots(most int) *slots {
	return &slots{most: most, taken: map[string]int{}, empty: make(chan struct{})}
}

// enter counts a request in; leave must be called when ok.
func (s *slots) enter(client string) (leave func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || s.taken[client] >= s.most {
		return nil, false
	}
	s.taken[client]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.taken[client]--; s.taken[client] == 0 {
			delete(s.taken, client)
		}
		if s.ended && len(s.taken) == 0 {
			close(s.empty)
		}
	}, true
}

// end lets no more requests in; the channel is closed when none is under way. It must be called once.
func (s *slots) end() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = true
	if len(s.taken) == 0 {
		close(s.empty)
	}
	return s.empty
}

func (s *slots) isEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// budget bounds the bytes of requests that are in memory at once, of all clients together and of each.
type budget struct {
	most, each int64

	mu    sync.Mutex // guards the fields below
	total int64
	taken map[string]int64
}

func newBudget(most, each int64) *budget {
	return &budget{most: most, each: each, taken: map[string]int64{}}
}

func (b *budget) take(client string, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.total+n > b.most || b.taken[client]+n > b.each {
		return false
	}
	b.total += n
	b.taken[client] += n
	return true
}

func (b *budget) give(client string, n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.total -= n
	if b.taken[client] -= n; b.taken[client] == 0 {
		delete(b.taken, client)
	}
}

// errNoRoom is the end of a body for which there is no room in memory now.
var errNoRoom = errors.New("too many bytes of requests are under way")

// charged is a body whose bytes count as they come, not as they are announced: a client that announces much and sends
// nothing takes nothing from others.
type charged struct {
	body   io.Reader
	budget *budget
	client string
	taken  int64
}

func (c *charged) Read(p []byte) (int, error) {
	n, err := c.body.Read(p)
	if !c.budget.take(c.client, int64(n)) {
		return 0, errNoRoom
	}
	c.taken += int64(n)
	return n, err
}

// free gives everything back, once nobody needs the body any more. It may be called again.
func (c *charged) free() {
	c.budget.give(c.client, c.taken)
	c.taken = 0
}
