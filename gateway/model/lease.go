package model

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
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
	bodiesSize = 2 * maxBody     // of all requests with a client, and again of all without: the host has them in memory
	maxGone    = 16              // requests without a client; more are canceled
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

// Budget bounds the use of a lease. A field that is zero bounds nothing. A request reserves its input, estimated by
// its size, and its longest answer until its usage is known. The limit of the answer is set to the rest of the budget
// if that is less. If a request does not fit together with running requests, it is refused. A request that runs alone
// may pass the budget by its input.
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
	Estimated int64
	CostUSD   float64
	CostKnown bool // false when a model has no price
}

// Lease is a key that code in a sandbox asks a provider's models with. It is safe for concurrent use.
type Lease struct {
	p     *Proxy
	key   string
	grant Grant
	ctx   context.Context // ends with Close
	end   context.CancelFunc
	slots *semaphore.Weighted // one a request
	gone  *semaphore.Weighted // the same for requests without a client
	sizes *semaphore.Weighted // of their bodies, in bytes
	spent chan struct{}
	// exhaust closes spent: the budget was not enough.
	exhaust func()
	span    atomic.Pointer[trace.SpanContext] // that the spans of requests are below

	mu       sync.Mutex // guards the fields below
	usage    Usage
	running  []*checked     // requests that ask a model, with their reservations
	requests sync.WaitGroup // added to with mu held, while ctx lasts
}

// Issue makes a lease. It must be closed. A budget in USD needs the prices of all models.
func (p *Proxy) Issue(g Grant) (*Lease, error) {
	switch {
	case p.providers[g.Provider].Name == "":
		return nil, fmt.Errorf("%w: unknown model provider %q", backend.ErrInvalid, g.Provider)
	case len(g.Models) == 0:
		return nil, fmt.Errorf("%w: a scoped key for %s without models", backend.ErrInvalid, g.Provider)
	case g.Budget.USD < 0 || g.Budget.OutputTokens < 0 || g.MaxConcurrent < 0:
		return nil, fmt.Errorf("%w: a negative limit of a scoped key for %s", backend.ErrInvalid, g.Provider)
	}
	known := true
	for _, m := range g.Models {
		if _, ok := p.o.Prices.of(g.Provider, m); !ok {
			known = false
			if g.Budget.USD > 0 {
				return nil, fmt.Errorf("%w: a USD budget requires a price of %s/%s; add it to Options.Prices (--prices)", backend.ErrInvalid, g.Provider, m)
			}
		}
	}
	g.MaxConcurrent = cmp.Or(g.MaxConcurrent, defaultConcurrent)
	g.Models = slices.Clone(g.Models)
	var key [16]byte
	_, _ = rand.Read(key[:]) // never fails, by its documentation
	l := &Lease{p: p, key: "wc-" + hex.EncodeToString(key[:]), grant: g, spent: make(chan struct{}),
		slots: semaphore.NewWeighted(int64(g.MaxConcurrent)), sizes: semaphore.NewWeighted(bodiesSize),
		gone: semaphore.NewWeighted(bodiesSize)}
	l.usage.CostKnown = known
	l.exhaust = sync.OnceFunc(func() { close(l.spent) })
	l.Under(g.Span)
	l.ctx, l.end = context.WithCancel(context.Background())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leases[l.key] = l
	return l, nil
}

// find returns the lease that one of some keys belongs to in a sandbox, nil if no key does.
func (p *Proxy) find(sandbox string, keys []string) *Lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range keys {
		if l := p.leases[key]; l != nil && (l.grant.SandboxID == "" || l.grant.SandboxID == sandbox) {
			return l
		}
	}
	return nil
}

// Key returns what code inside has in the place of the provider's key.
func (l *Lease) Key() string { return l.key }

// Under has the spans of requests from now on be below another one than that of the grant.
func (l *Lease) Under(span trace.SpanContext) { l.span.Store(&span) }

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
	delete(l.p.leases, l.key)
	l.p.mu.Unlock()
	l.mu.Lock()
	l.end()
	l.mu.Unlock()
	l.requests.Wait()
	return nil
}

// begin counts a request in, and returns what counts it out; false once the lease has been closed.
func (l *Lease) begin() (end func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
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
	return sync.OnceFunc(func() { l.sizes.Release(size); l.slots.Release(1) }), true
}

// overBudget returns what of the budget is used up, empty when nothing is. The caller holds mu.
func (l *Lease) overBudget() string {
	switch b := l.grant.Budget; {
	case b.USD > 0 && l.usage.CostUSD >= b.USD:
		return fmt.Sprintf("%.4g USD", b.USD)
	case b.OutputTokens > 0 && l.usage.OutputTokens >= b.OutputTokens:
		return fmt.Sprintf("%d output tokens", b.OutputTokens)
	}
	return ""
}

// left returns how many tokens of output the budget leaves for an answer.
func (l *Lease) left(c *checked) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leftLocked(c)
}

// leftLocked subtracts the reservations of running requests. If there are any, the request's own input must fit. A
// request that runs alone may pass the budget by it, because the estimate is too high for images and cached input.
func (l *Lease) leftLocked(c *checked) int64 {
	price, _ := l.p.o.Prices.of(l.grant.Provider, c.model)
	b := l.grant.Budget
	output, usd := b.OutputTokens-l.usage.OutputTokens, b.USD-l.usage.CostUSD
	for _, other := range l.running {
		output -= other.longest
		usd -= other.cost
	}
	if len(l.running) > 0 {
		usd -= price.cost(tokens{input: c.input})
	}
	if price.Long != nil {
		price.Output = max(price.Output, price.Long.Output)
	}
	left := int64(maxTokens)
	if b.OutputTokens > 0 {
		left = min(left, output)
	}
	if b.USD > 0 {
		left = min(left, int64(min(usd*1e6/max(price.Output, 1e-6), maxTokens)))
	}
	return left
}

// reserve counts a request that is passed on. If it asks a model, its cost is set aside until settle.
func (l *Lease) reserve(c *checked, asks bool) error {
	price, _ := l.p.o.Prices.of(l.grant.Provider, c.model)
	l.mu.Lock()
	defer l.mu.Unlock()
	if what := l.overBudget(); what != "" {
		return &refusal{status: http.StatusForbidden, spent: true, message: "the budget of this run is used up: " + what}
	}
	if asks {
		if len(l.running) > 0 && c.longest > l.leftLocked(c) {
			return &refusal{status: http.StatusForbidden, spent: true,
				message: "running requests have reserved the budget of this run: retry after they finish"}
		}
		c.cost = price.cost(tokens{input: c.input, output: c.longest})
		l.running = append(l.running, c)
	}
	l.usage.Requests++
	return nil
}

// refused counts a request that was not passed on, because the budget is spent or for another reason, and returns how
// many there were. The budget is not spent while running requests may return a part of their reservations.
func (l *Lease) refused(spent bool) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.usage.Refused++
	if spent && (len(l.running) == 0 || l.overBudget() != "") {
		l.exhaust()
	}
	return l.usage.Refused
}

// settle replaces the reservation of a request by its usage, and returns the cost. A second call does nothing.
func (l *Lease) settle(c *checked, t tokens, estimated bool) float64 {
	price, _ := l.p.o.Prices.of(l.grant.Provider, c.model)
	cost := price.cost(t)
	l.mu.Lock()
	defer l.mu.Unlock()
	i := slices.Index(l.running, c)
	if i < 0 {
		return 0
	}
	l.running = slices.Delete(l.running, i, i+1)
	l.usage.InputTokens += t.input
	l.usage.OutputTokens += t.output
	l.usage.CacheReadTokens += t.cacheRead
	l.usage.CacheWriteTokens += t.cacheWrite + t.cacheWriteLong
	l.usage.ReasoningTokens += t.reasoning
	l.usage.CostUSD += cost
	if estimated {
		l.usage.Estimated++
	}
	if c.short && t.output >= c.longest { // the budget ended it, not the model
		l.exhaust()
	}
	return cost
}
