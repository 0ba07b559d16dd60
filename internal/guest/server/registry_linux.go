package server

import (
	"slices"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/output"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// registry knows the execs: all that run, and the latest of those that ended.
type registry struct {
	budget output.Budget

	mu       sync.Mutex            // guards the fields below
	byID     map[string]*execution // nil for one that is about to start
	order    []*execution          // oldest first
	starting int                   // reserved ids without an exec
	settled  *sync.Cond            // for mu: starting fell
	running  int
	finished int
	lastEnd  time.Time // when an exec last ended
}

func newRegistry() *registry {
	r := &registry{byID: map[string]*execution{}}
	r.settled = sync.NewCond(&r.mu)
	return r
}

// reserve takes an id for an exec that is about to start.
func (r *registry) reserve(id string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.byID[id]; ok {
		return wire.Errorf(wire.CodeExists, "an exec with this id already exists")
	}
	if r.running >= maxRunning {
		return wire.Errorf(wire.CodeCapacity, "limit of running commands reached (%d)", maxRunning)
	}
	r.byID[id] = nil
	r.running++
	r.starting++
	return nil
}

// release frees the id of an exec that did not start.
func (r *registry) release(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byID, id)
	r.running--
	r.starting--
	r.settled.Broadcast()
}

// add takes in a started exec under its reserved id.
func (r *registry) add(e *execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byID[e.id] = e
	r.order = append(r.order, e)
	r.starting--
	r.settled.Broadcast()
}

// find returns the exec that match accepts; nil for none. A command may run before its exec is added: with some about to
// start, none is the final answer only when these were looked at, too, for which wait waits.
func (r *registry) find(match func(*execution) bool, wait bool) (e *execution, final bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if at := slices.IndexFunc(r.order, match); at >= 0 {
			return r.order[at], true
		}
		if r.starting == 0 || !wait {
			return nil, r.starting == 0
		}
		r.settled.Wait()
	}
}

// ended counts e as ended, and forgets the oldest of the ended ones and the output that the budget has no room for.
func (r *registry) ended(e *execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running--
	r.finished++
	r.lastEnd = time.Now()
	r.order = slices.DeleteFunc(r.order, func(old *execution) bool {
		many := r.finished > maxFinished
		if !old.final() || old == e || !many && !r.budget.Exceeded() {
			return false
		}
		old.forget()
		if many {
			r.finished--
			delete(r.byID, old.id)
		}
		return many
	})
}

// forgetEnded forgets the execs that have ended.
func (r *registry) forgetEnded() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.order = slices.DeleteFunc(r.order, func(e *execution) bool {
		if !e.final() {
			return false
		}
		e.forget()
		delete(r.byID, e.id)
		r.finished--
		return true
	})
}

// get returns an exec, once it has started if it is about to.
func (r *registry) get(id string) (*execution, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e, known := r.byID[id]
	for known && e == nil {
		r.settled.Wait()
		e, known = r.byID[id]
	}
	if known {
		return e, nil
	}
	return nil, wire.Errorf(wire.CodeNotFound, "exec id not found")
}

// all lists the execs, oldest first.
func (r *registry) all() []*execution {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*execution(nil), r.order...)
}

// active returns how many execs run.
func (r *registry) active() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running
}

// idle returns how long no exec has been running; zero while one is.
func (r *registry) idle() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running > 0 {
		return 0
	}
	return time.Since(r.lastEnd)
}
