package model

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"

	"github.com/workcell-dev/workcell/backend"
)

// defaultConcurrent is how many requests of a lease run at once unless its grant says otherwise.
const defaultConcurrent = 8

// What requests of a lease share.
const (
	slotWait   = 5 * time.Minute // how long a request waits for others, which may take as long as a model does
	bodiesSize = 2 * maxBody     // of all that are under way together: the host has them in memory
)

// Grant is what a lease is for.
type Grant struct {
	Provider string
	Models   []string // names as the provider has them
	Budget   Budget
	// Web lets tools that the provider runs, and content that it fetches from URLs, through.
	Web           bool
	MaxConcurrent int // requests at once; zero is 8

	SandboxID  string // the sandbox that the key works in; empty for any that is attached
	Run, Agent string // for spans
	Span       trace.SpanContext
}

// Budget is what a lease may use. Zero is no bound. It is checked before each request, whose own limit of the answer is lowered to
// what is left; those under way at once, and those without a limit, may pass it.
type Budget struct {
	USD          float64
	OutputTokens int64
}

// Usage is what was used under a lease.
type Usage struct {
	Requests int64 // that were passed on
	Refused  int64
	// InputTokens include those read from and written to caches, OutputTokens those thought.
	InputTokens, OutputTokens                          int64
	CacheReadTokens, CacheWriteTokens, ReasoningTokens int64
	// Estimated is the number of answers that ended without saying what they used; they are counted by their size.
	Estimated    int64
	ToolsRemoved int64
	CostUSD      float64
	CostKnown    bool // false when a model has no price
}

// Lease is a key that code in a sandbox asks a provider's models with. It is safe for concurrent use.
type Lease struct {
	p     *Proxy
	key   string
	grant Grant
	ctx   context.Context // ends with Close
	end   context.CancelFunc
	slots *semaphore.Weighted // one a request
	sizes *semaphore.Weighted // of their bodies, in bytes
	spent chan struct{}

	mu       sync.Mutex // guards the fields below
	span     trace.SpanContext
	usage    Usage
	closed   bool
	over     bool           // spent is closed
	requests sync.WaitGroup // added to with mu held, while not closed
}

// Issue makes a lease. It must be closed. A budget in USD needs the prices of all models.
func (p *Proxy) Issue(g Grant) (*Lease, error) {
	switch {
	case p.providers[g.Provider].Name == "":
		return nil, fmt.Errorf("%w: there is no model provider %q", backend.ErrInvalid, g.Provider)
	case len(g.Models) == 0:
		return nil, fmt.Errorf("%w: a lease for %s without models", backend.ErrInvalid, g.Provider)
	case g.Budget.USD < 0 || g.Budget.OutputTokens < 0 || g.MaxConcurrent < 0:
		return nil, fmt.Errorf("%w: a negative bound of a lease for %s", backend.ErrInvalid, g.Provider)
	}
	known := true
	for _, m := range g.Models {
		if _, ok := p.o.Prices.of(g.Provider, m); !ok {
			known = false
			if g.Budget.USD > 0 {
				return nil, fmt.Errorf("%w: a budget in USD, and no price of %s/%s: add it to the prices", backend.ErrInvalid, g.Provider, m)
			}
		}
	}
	if g.MaxConcurrent == 0 {
		g.MaxConcurrent = defaultConcurrent
	}
	g.Models = slices.Clone(g.Models)
	var key [16]byte
	_, _ = rand.Read(key[:]) // never fails, by its documentation
	l := &Lease{p: p, key: "wc-" + hex.EncodeToString(key[:]), grant: g, span: g.Span, spent: make(chan struct{}),
		slots: semaphore.NewWeighted(int64(g.MaxConcurrent)), sizes: semaphore.NewWeighted(bodiesSize)}
	l.usage.CostKnown = known
	l.ctx, l.end = context.WithCancel(context.Background())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leases[l] = true
	return l, nil
}

// find returns the lease of one of some keys in a sandbox, nil when there is none. How long it takes says nothing of a key.
func (p *Proxy) find(sandbox string, keys []string) *Lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found *Lease
	for l := range p.leases {
		for _, key := range keys {
			if subtle.ConstantTimeCompare([]byte(l.key), []byte(key)) == 1 && (l.grant.SandboxID == "" || l.grant.SandboxID == sandbox) {
				found = l
			}
		}
	}
	return found
}

// Key returns what code inside has in the place of the provider's key.
func (l *Lease) Key() string { return l.key }

// Under has the spans of requests from now on be below another one than that of the grant.
func (l *Lease) Under(span trace.SpanContext) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.span = span
}

func (l *Lease) parent() trace.SpanContext {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.span
}

// Usage returns what was used so far. It is final once Close has returned.
func (l *Lease) Usage() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.usage
}

// Spent returns a channel that is closed when a request was refused, or an answer cut short, for the budget.
func (l *Lease) Spent() <-chan struct{} { return l.spent }

// Close ends the lease and its requests, and waits for them. Idempotent.
func (l *Lease) Close() error {
	l.p.mu.Lock()
	delete(l.p.leases, l)
	l.p.mu.Unlock()
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.end()
	l.requests.Wait()
	return nil
}

// begin counts a request in, and returns what counts it out; false once the lease has been closed.
func (l *Lease) begin() (end func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, false
	}
	l.requests.Add(1)
	return l.requests.Done, true
}

// slot waits until a request with a body of some size may run, and returns what lets the next one.
func (l *Lease) slot(ctx context.Context, size int64) (release func(), ok bool) {
	ctx, cancel := context.WithTimeout(ctx, slotWait)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	if l.slots.Acquire(ctx, 1) != nil {
		return nil, false
	}
	if l.sizes.Acquire(ctx, size) != nil {
		l.slots.Release(1)
		return nil, false
	}
	return func() { l.sizes.Release(size); l.slots.Release(1) }, true
}

// overBudget returns what of the budget is used up, empty when nothing is.
func (l *Lease) overBudget() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var what string
	switch b := l.grant.Budget; {
	case b.USD > 0 && l.usage.CostUSD >= b.USD:
		what = fmt.Sprintf("%.4g USD", b.USD)
	case b.OutputTokens > 0 && l.usage.OutputTokens >= b.OutputTokens:
		what = fmt.Sprintf("%d output tokens", b.OutputTokens)
	}
	return what
}

// left returns how many tokens of output the budget leaves for an answer of a model.
func (l *Lease) left(model string) int64 {
	price, _ := l.p.o.Prices.of(l.grant.Provider, model)
	if price.Long != nil {
		price.Output = max(price.Output, price.Long.Output)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	left := int64(maxTokens)
	if b := l.grant.Budget.OutputTokens; b > 0 {
		left = min(left, b-l.usage.OutputTokens)
	}
	if b := l.grant.Budget.USD; b > 0 && price.Output > 0 {
		left = min(left, int64((b-l.usage.CostUSD)/price.Output*1e6))
	}
	return left
}

// refused counts a request that was not passed on, because the budget is spent or for another reason, and returns how many there
// were.
func (l *Lease) refused(spent bool) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.usage.Refused++
	if spent {
		l.exhaustLocked()
	}
	return l.usage.Refused
}

// exhaust says that the budget was not enough.
func (l *Lease) exhaust() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.exhaustLocked()
}

func (l *Lease) exhaustLocked() {
	if !l.over {
		l.over = true
		close(l.spent)
	}
}

// passed counts a request that is passed on.
func (l *Lease) passed(toolsRemoved int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.usage.Requests++
	l.usage.ToolsRemoved += int64(toolsRemoved)
}

// spend adds what an answer used, and returns what it cost.
func (l *Lease) spend(model string, t tokens, estimated bool) float64 {
	cost := 0.0
	if price, ok := l.p.o.Prices.of(l.grant.Provider, model); ok {
		cost = price.cost(t)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.usage.InputTokens += t.input
	l.usage.OutputTokens += t.output
	l.usage.CacheReadTokens += t.cacheRead
	l.usage.CacheWriteTokens += t.cacheWrite + t.cacheWriteLong
	l.usage.ReasoningTokens += t.reasoning
	l.usage.CostUSD += cost
	if estimated {
		l.usage.Estimated++
	}
	return cost
}
