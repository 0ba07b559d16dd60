// Package pool creates things in advance if creating them takes long. It keeps a number of things of each kind and
// creates them one at a time, concurrently with the callers of Take.
package pool

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/internal/bound"
)

// Timing of a pool.
const (
	// quiet is how long the pool waits after the last Take before it creates a thing, so that callers that take many
	// things have the CPU for their first work. maxQuiet is the maximum total wait.
	quiet, maxQuiet = 100 * time.Millisecond, 2 * time.Second
	// restFactor is the pause after creating a thing, as a multiple of the creation time. A creation longer than
	// maxRest/restFactor mostly waits for others, for example for a node of a cluster, so it does not need a longer pause.
	restFactor, maxRest = 3, 5 * time.Second
	// checkEvery is the interval between reviews of the things in the pool.
	checkEvery = 10 * time.Second
	// firstPause and longestPause are the limits of the pause between failed attempts. The pause is at least as long as
	// the attempt.
	firstPause, longestPause = time.Second, time.Minute
)

// ErrLater is the error of Source.Make if it has no capacity now.
var ErrLater = errors.New("no capacity now")

// Source creates things of kind K. Pool.Run calls the methods sequentially.
type Source[K, T comparable] interface {
	// Make must leave nothing behind if it fails. It should log the failure, unless it returns ErrLater.
	Make(ctx context.Context, kind K) (T, error)
	// Usable must return a function to check whether a thing of a kind can still be used.
	Usable(ctx context.Context, kind K) func(T) bool
	// Drop removes an unused thing.
	Drop(ctx context.Context, thing T)
}

// Kind is the target size of the pool for one kind.
type Kind[K comparable] struct {
	Of   K
	Size int
	Idle time.Duration // idle time after which the kind is not kept; negative means never
}

// Pool keeps things of several kinds ready. It is safe for concurrent use, but Run must be called only once.
type Pool[K, T comparable] struct {
	source Source[K, T]
	wake   chan struct{} // has capacity 1 and signals a change

	mu      sync.Mutex     // guards the fields below; never held across a call of the source
	shelves []*shelf[K, T] // the slice itself never changes
	taken   time.Time
	waiting time.Time // since when the pool has not been full
	closed  bool
}

// shelf contains the things of one kind.
type shelf[K, T comparable] struct {
	Kind[K]
	ready  []T // newest last
	asked  time.Time
	asleep bool // no Take for the idle time
	retry  time.Time
	pause  time.Duration // pause before retry; each failure doubles it
}

// New returns an empty pool. Run fills it. Kinds must be distinct.
func New[K, T comparable](source Source[K, T], kinds []Kind[K]) *Pool[K, T] {
	p := &Pool[K, T]{source: source, wake: make(chan struct{}, 1)}
	for _, k := range kinds {
		p.shelves = append(p.shelves, &shelf[K, T]{Kind: k, asked: time.Now()})
	}
	return p
}

// Take removes the newest thing of a kind from the pool and returns it.
func (p *Pool[K, T]) Take(kind K) (thing T, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.shelves, func(s *shelf[K, T]) bool { return s.Of == kind })
	if i < 0 || p.closed {
		return thing, false
	}
	s, now := p.shelves[i], time.Now()
	s.asked, s.asleep, p.taken = now, false, now
	defer p.changed()
	return s.pop()
}

// pop removes the newest thing from the shelf and returns it.
func (s *shelf[K, T]) pop() (thing T, ok bool) {
	if len(s.ready) == 0 {
		return thing, false
	}
	last := len(s.ready) - 1
	thing, ok = s.ready[last], true
	clear(s.ready[last:])
	s.ready = s.ready[:last]
	return thing, ok
}

// Evict removes a thing of any kind from the pool and returns it, to make room for other uses.
func (p *Pool[K, T]) Evict() (thing T, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.shelves {
		if thing, ok = s.pop(); ok {
			return thing, true
		}
	}
	return thing, false
}

// changed wakes Run.
func (p *Pool[K, T]) changed() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run fills the pool until ctx ends, and returns the remaining things. Afterwards Take and Evict return nothing.
func (p *Pool[K, T]) Run(ctx context.Context) []T {
	check := time.NewTicker(checkEvery)
	defer check.Stop()
	for ctx.Err() == nil {
		s, wait := p.next(time.Now())
		if wait == 0 {
			p.fill(ctx, s)
			continue
		}
		select {
		case <-check.C:
			p.Review(ctx)
		case <-p.wake:
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
	return p.close()
}

// next returns the shelf for the next thing to create, or how long to wait.
func (p *Pool[K, T]) next(now time.Time) (least *shelf[K, T], wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait = checkEvery
	for _, s := range p.shelves {
		switch pause := s.retry.Sub(now); {
		case s.asleep || len(s.ready) >= s.Size:
		case pause > 0:
			wait = min(wait, pause)
		case least == nil || len(s.ready) < len(least.ready):
			least = s
		}
	}
	if least == nil {
		p.waiting = time.Time{}
		return nil, wait
	}
	if p.waiting.IsZero() {
		p.waiting = now
	}
	if busy := quiet - now.Sub(p.taken); busy > 0 && now.Sub(p.waiting) < maxQuiet {
		return nil, busy
	}
	return least, 0
}

// fill creates one thing and then pauses. Therefore quick creations use at most a quarter of the time.
func (p *Pool[K, T]) fill(ctx context.Context, s *shelf[K, T]) {
	began := time.Now()
	thing, err := p.source.Make(ctx, s.Of)
	took := time.Since(began)
	p.mu.Lock()
	if err == nil {
		s.ready = append(s.ready, thing)
		s.pause = 0
	} else {
		s.pause = min(max(2*s.pause, firstPause), longestPause)
		if errors.Is(err, ErrLater) {
			s.pause = firstPause
		}
		s.retry = time.Now().Add(max(s.pause, took)) // a slow attempt keeps other kinds waiting
	}
	p.mu.Unlock()
	bound.Pause(ctx, min(restFactor*took, maxRest))
}

// Review drops unusable things and things of kinds without demand. Run calls it periodically.
func (p *Pool[K, T]) Review(ctx context.Context) {
	for _, s := range p.shelves {
		for _, thing := range p.unusable(s, p.source.Usable(ctx, s.Of)) {
			p.source.Drop(ctx, thing)
		}
	}
	p.changed()
}

// unusable removes the things to drop from the shelf and returns them.
func (p *Pool[K, T]) unusable(s *shelf[K, T], usable func(T) bool) (drop []T) {
	p.mu.Lock()
	s.asleep = s.Idle >= 0 && time.Since(s.asked) >= s.Idle
	broken := slices.Clone(s.ready)
	p.mu.Unlock()
	broken = slices.DeleteFunc(broken, usable)
	p.mu.Lock()
	defer p.mu.Unlock()
	s.ready = slices.DeleteFunc(s.ready, func(thing T) bool {
		if !s.asleep && !slices.Contains(broken, thing) {
			return false
		}
		drop = append(drop, thing)
		return true
	})
	return drop
}

// close closes the pool and returns the remaining things.
func (p *Pool[K, T]) close() (left []T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, s := range p.shelves {
		left = append(left, s.ready...)
		s.ready = nil
	}
	return left
}
