package server

import (
	"slices"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/output"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// registry contains all running commands and the latest ended commands.
type registry struct {
	budget output.Budget

	mu       sync.Mutex            // guards the fields below
	byID     map[string]*execution // includes reserved commands, which have not started
	order    []*execution          // started commands, oldest first
	running  int
	finished int
	lastEnd  time.Time // time when a command last ended
}

func newRegistry() *registry { return &registry{byID: map[string]*execution{}} }

// reserve adds a command before the start.
func (r *registry) reserve(e *execution) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID[e.id] != nil {
		return wire.Errorf(wire.CodeExists, "an exec with this id already exists")
	}
	if r.running >= maxRunning {
		return wire.Errorf(wire.CodeCapacity, "limit of running commands reached (%d)", maxRunning)
	}
	r.byID[e.id] = e
	r.running++
	return nil
}

// release removes a reserved command.
func (r *registry) release(e *execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byID, e.id)
	r.running--
	close(e.settled)
}

// add records the start of a command.
func (r *registry) add(e *execution) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.order = append(r.order, e)
	close(e.settled)
}

// find returns the command whose processes have this tag, or nil. It finds a starting command as soon as it has a
// process.
func (r *registry) find(tag uint64) *execution {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.byID {
		if e.proc.Has(tag) {
			return e
		}
	}
	return nil
}

// ended records the end of a command, before the command is final. It removes the oldest ended commands, and output
// over the budget.
func (r *registry) ended() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running--
	r.finished++
	r.lastEnd = time.Now()
	r.order = slices.DeleteFunc(r.order, func(old *execution) bool {
		many := r.finished > maxFinished
		if !old.final() || !many && !r.budget.Exceeded() {
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

// forgetEnded removes all ended commands.
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

// get returns a command. If the command is about to start, get waits for the start.
func (r *registry) get(id string) (*execution, error) {
	for {
		r.mu.Lock()
		e := r.byID[id]
		r.mu.Unlock()
		switch {
		case e == nil:
			return nil, wire.Errorf(wire.CodeNotFound, "exec id not found")
		case closed(e.settled):
			return e, nil
		}
		<-e.settled // the start may have failed
	}
}

// all returns the commands, oldest first.
func (r *registry) all() []*execution {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.order)
}

// active returns the number of running commands.
func (r *registry) active() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.running
}

// idle returns how long no command has been running, or zero if a command is running.
func (r *registry) idle() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running > 0 {
		return 0
	}
	return time.Since(r.lastEnd)
}
