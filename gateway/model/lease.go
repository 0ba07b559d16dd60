package model

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/semaphore"

	"github.com/workcell-dev/workcell/backend"
)

// defaultConcurrent is the default maximum of concurrent requests of a lease.
const defaultConcurrent = 8

// Limits shared by the requests of a lease.
const (
	slotWait = 5 * time.Minute // maximum wait for other requests, which may take as long as a model does
	// Bytes of all request bodies with a client, and the same for all without a client, because the host has them in
	// memory.
	bodiesSize = 2 * maxBody
	maxGone    = 16 // maximum number of requests without a client; further requests are canceled
)

// Grant describes the access of a lease.
type Grant struct {
	Provider string
	Models   []string // provider's model names; at least one
	Budget   Budget
	// Web allows the provider to search, to fetch, and to read content from URLs.
	Web           bool
	MaxConcurrent int // maximum number of running requests; default 8

	// SandboxID is the sandbox with access to the key. If empty, the key is valid in all attached sandboxes, so a sandbox
	// that learns another sandbox's key can use it.
	SandboxID  string
	Run, Agent string // for spans
	Span       trace.SpanContext
}

// Budget limits the use of a lease. A zero field means no limit. Until the usage is known, a request reserves the
// input, estimated from the size of the request, and the longest answer. If the remaining budget is smaller, it becomes
// the limit of the answer. A request is refused if it does not fit together with the running requests. If no other
// request is running, the input may exceed the budget.
type Budget struct {
	USD          float64
	OutputTokens int64
}

// Usage is the usage of a lease.
type Usage struct {
	Requests int64 // forwarded requests
	Refused  int64
	// InputTokens include tokens read from and written to caches. OutputTokens include reasoning tokens.
	InputTokens, OutputTokens                          int64
	CacheReadTokens, CacheWriteTokens, ReasoningTokens int64
	// Estimated is the number of answers without usage data. They are counted by size.
	Estimated int64
	CostUSD   float64
	CostKnown bool // false if a model has no price
}

// Lease is a scoped key to let code in a sandbox use a provider's models. It is safe for concurrent use.
type Lease struct {
	p     *Proxy
	key   string
	grant Grant
	ctx   context.Context // done after Close
	end   context.CancelFunc
	slots *semaphore.Weighted // one per request
	gone  *semaphore.Weighted // sizes of requests without a client
	sizes *semaphore.Weighted // sizes of request bodies, in bytes
	spent chan struct{}
	// exhaust closes spent when the budget is insufficient.
	exhaust func()
	span    atomic.Pointer[trace.SpanContext] // parent of request spans

	mu       sync.Mutex // guards the fields below
	usage    Usage
	running  []*checked     // running model requests with their reservations
	requests sync.WaitGroup // increased only with mu held and before ctx is done
}

// Issue returns a new lease. The caller must close it. A budget in USD requires prices for all models.
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
		if _, ok := p.o.Prices.of(g.Provider, m); ok {
			continue
		}
		if known = false; g.Budget.USD > 0 {
			return nil, fmt.Errorf("%w: a USD budget requires a price of %s/%s; add it to Options.Prices (--prices)",
				backend.ErrInvalid, g.Provider, m)
		}
	}
	g.MaxConcurrent = cmp.Or(g.MaxConcurrent, defaultConcurrent)
	g.Models = slices.Clone(g.Models)
	var key [16]byte
	_, _ = rand.Read(key[:]) // never fails, as documented
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

// find returns the lease for one of the keys in a sandbox, or nil if no key matches.
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

// Key returns the key for code in the sandbox. It replaces the provider's key.
func (l *Lease) Key() string { return l.key }

// Under sets the parent span of later requests. It overrides the grant's span.
func (l *Lease) Under(span trace.SpanContext) { l.span.Store(&span) }

// Usage returns the usage so far. It is final after Close has returned.
func (l *Lease) Usage() Usage {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.usage
}

// Spent returns a channel. It is closed when the budget caused a refused request or a shortened answer.
func (l *Lease) Spent() <-chan struct{} { return l.spent }

// Close ends the lease and the running requests, and waits for them. Calling it again has no effect.
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

// begin registers a request. The caller must call end afterwards. ok is false if the lease is closed.
func (l *Lease) begin() (end func(), ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx.Err() != nil {
		return nil, false
	}
	l.requests.Add(1)
	return l.requests.Done, true
}

// slot waits until a request with a body of this size may run. release frees the slot, and the size at that time.
func (l *Lease) slot(ctx context.Context, size *int64) (release func(), ok bool) {
	ctx, cancel := context.WithTimeout(ctx, slotWait)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	if l.slots.Acquire(ctx, 1) != nil {
		return nil, false
	}
	if l.sizes.Acquire(ctx, *size) != nil {
		l.slots.Release(1)
		return nil, false
	}
	return sync.OnceFunc(func() { l.sizes.Release(*size); l.slots.Release(1) }), true
}

// exhausted returns the exhausted part of the budget, or an empty string. The caller must hold mu.
func (l *Lease) exhausted() string {
	switch b := l.grant.Budget; {
	case b.USD > 0 && l.usage.CostUSD >= b.USD:
		return fmt.Sprintf("%.4g USD", b.USD)
	case b.OutputTokens > 0 && l.usage.OutputTokens >= b.OutputTokens:
		return fmt.Sprintf("%d output tokens", b.OutputTokens)
	}
	return ""
}

// left returns the maximum output tokens of an answer within the budget.
func (l *Lease) left(c *checked) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leftLocked(c)
}

// leftLocked is left with mu held. It subtracts the reservations of running requests. If other requests are running,
// the request's own input must fit. Otherwise, it may exceed the budget, because the estimate is too high for images
// and cached input.
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

// reserve counts a forwarded request. If it runs a model, reserve reserves the cost until settle.
func (l *Lease) reserve(c *checked, asks bool) error {
	price, _ := l.p.o.Prices.of(l.grant.Provider, c.model)
	l.mu.Lock()
	defer l.mu.Unlock()
	if what := l.exhausted(); what != "" {
		return overBudget("the budget of this run is used up: " + what)
	}
	if asks {
		if len(l.running) > 0 && c.longest > l.leftLocked(c) {
			return overBudget("running requests have reserved the budget of this run: retry after they finish")
		}
		c.cost = price.cost(tokens{input: c.input, output: c.longest})
		l.running = append(l.running, c)
	}
	l.usage.Requests++
	return nil
}

// refused counts a refused request and returns the number of refusals. spent reports whether the budget was the reason.
// The budget does not count as spent while running requests may return part of their reservations.
func (l *Lease) refused(spent bool) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.usage.Refused++
	if spent && (len(l.running) == 0 || l.exhausted() != "") {
		l.exhaust()
	}
	return l.usage.Refused
}

// settle replaces the reservation of a request by the usage, and returns the cost. Calling it again has no effect.
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
	if c.short && t.output >= c.longest { // the budget ended the answer, not the model
		l.exhaust()
	}
	return cost
}
