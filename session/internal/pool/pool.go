// Package pool keeps things ready that take long to make: so many of each kind, made one at a time beside those who
// take them.
package pool

import (
	"context"
	"errors"
	"sync"
	"time"
)

// Times of a pool.
const (
	// Quiet is how long nobody must have taken anything before another one is made, so that who takes many at once, and
	// what they do first, has the machine; Busy is how long that may last.
	Quiet, Busy = 100 * time.Millisecond, 2 * time.Second
	// Rest is how much longer than the making of one thing the pause after it is.
	Rest = 3
	// Check is how often what is ready is looked over.
	Check = 10 * time.Second
	// FirstPause and LongestPause are between tries to make a kind that fails.
	FirstPause, LongestPause = time.Second, time.Minute
)

// ErrLater is the failure of a Source's Make that has no capacity now.
var ErrLater = errors.New("no capacity now")

// Source makes things of kind K. Pool.Run calls its methods one after the other.
type Source[K comparable, T any] interface {
	// Make must leave nothing behind when it fails; who reads the log should know of it, unless it is ErrLater.
	Make(ctx context.Context, kind K) (T, error)
	// Usable must return what tells whether a thing of a kind can still be handed out.
	Usable(ctx context.Context, kind K) func(T) bool
	// Drop ends a thing that nobody took.
	Drop(ctx context.Context, thing T)
}

// Kind is how many things of a kind are to be ready.
type Kind[K comparable] struct {
	Of   K
	Size int
	Idle time.Duration // after which nothing of it is, until somebody asks for one again; negative is never
}

// Pool keeps things ready. Its methods may be called concurrently, Run once.
type Pool[K comparable, T any] struct {
	source Source[K, T]
	wake   chan struct{} // has room for one: something changed

	mu      sync.Mutex // guards the fields below; never held across a call of the source
	shelves map[K]*shelf[T]
	order   []K // of the kinds
	taken   time.Time
	waiting time.Time // when something was first missing since nothing was
	closed  bool
}

// shelf is what is ready of one kind.
type shelf[T any] struct {
	size   int
	idle   time.Duration
	ready  []T // the newest last
	asked  time.Time
	asleep bool // nobody asks for any
	retry  time.Time
	pause  time.Duration // before retry, doubled by each failure
}

// New returns a pool that Run fills. Kinds must be distinct.
func New[K comparable, T any](source Source[K, T], kinds []Kind[K]) *Pool[K, T] {
	p := &Pool[K, T]{source: source, wake: make(chan struct{}, 1), shelves: map[K]*shelf[T]{}}
	for _, k := range kinds {
		p.order = append(p.order, k.Of)
		p.shelves[k.Of] = &shelf[T]{size: k.Size, idle: k.Idle, asked: time.Now()}
	}
	return p
}

// Take returns the newest thing of a kind, which is the caller's then.
func (p *Pool[K, T]) Take(kind K) (thing T, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.shelves[kind]
	if s == nil || p.closed {
		return thing, false
	}
	now := time.Now()
	s.asked, s.asleep, p.taken = now, false, now
	defer p.changed()
	return s.pop()
}

// pop takes the newest thing off the shelf.
func (s *shelf[T]) pop() (thing T, ok bool) {
	if len(s.ready) == 0 {
		return thing, false
	}
	last := len(s.ready) - 1
	thing, ok = s.ready[last], true
	clear(s.ready[last:])
	s.ready = s.ready[:last]
	return thing, ok
}

// Evict returns a thing of any kind, which is the caller's then, to make room for something else.
func (p *Pool[K, T]) Evict() (thing T, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, kind := range p.order {
		if thing, ok = p.shelves[kind].pop(); ok {
			return thing, true
		}
	}
	return thing, false
}

// changed wakes Run; mu is held.
func (p *Pool[K, T]) changed() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run fills the pool until ctx ends, and returns the things left. Take and Evict find nothing then.
func (p *Pool[K, T]) Run(ctx context.Context) []T {
	check := time.NewTicker(Check)
	defer check.Stop()
	for ctx.Err() == nil {
		kind, wait := p.next(time.Now())
		if wait == 0 {
			p.fill(ctx, kind)
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-check.C:
			p.Review(ctx)
		case <-p.wake:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
	return p.close()
}

// next returns the kind of which something is to be made now, or how long to wait for that.
func (p *Pool[K, T]) next(now time.Time) (kind K, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	wait, found := Check, false
	for _, k := range p.order {
		s := p.shelves[k]
		switch pause := s.retry.Sub(now); {
		case s.asleep || len(s.ready) >= s.size:
		case pause > 0:
			wait = min(wait, pause)
		case !found || len(s.ready) < len(p.shelves[kind].ready):
			kind, found = k, true
		}
	}
	if !found {
		p.waiting = time.Time{}
		return kind, wait
	}
	if p.waiting.IsZero() {
		p.waiting = now
	}
	if busy := Quiet - now.Sub(p.taken); busy > 0 && now.Sub(p.waiting) < Busy {
		return kind, busy
	}
	return kind, 0
}

// fill makes one thing, and then lets three times as long pass as that took: whatever it costs, the pool takes a
// quarter of it.
func (p *Pool[K, T]) fill(ctx context.Context, kind K) {
	began := time.Now()
	thing, err := p.source.Make(ctx, kind)
	took := time.Since(began)
	p.mu.Lock()
	s := p.shelves[kind]
	if err == nil {
		s.ready = append(s.ready, thing)
		s.pause = 0
	} else {
		s.pause = min(max(2*s.pause, FirstPause), LongestPause)
		if errors.Is(err, ErrLater) {
			s.pause = FirstPause
		}
		s.retry = time.Now().Add(s.pause)
	}
	p.mu.Unlock()
	select {
	case <-time.After(Rest * took):
	case <-ctx.Done():
	}
}

// Review drops what cannot be handed out any more, and all of a kind that nobody asked for. Run does it now and then.
func (p *Pool[K, T]) Review(ctx context.Context) {
	for _, kind := range p.order {
		for _, thing := range p.unusable(kind, p.source.Usable(ctx, kind)) {
			p.source.Drop(ctx, thing)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.changed()
}

// unusable takes what is to be dropped off the shelf.
func (p *Pool[K, T]) unusable(kind K, usable func(T) bool) (drop []T) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.shelves[kind]
	s.asleep = s.idle >= 0 && time.Since(s.asked) >= s.idle
	var keep []T
	for _, thing := range s.ready {
		if s.asleep || !usable(thing) {
			drop = append(drop, thing)
		} else {
			keep = append(keep, thing)
		}
	}
	s.ready = keep
	return drop
}

// close ends the pool and returns what is in it.
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
