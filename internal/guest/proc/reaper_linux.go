package proc

import (
	"maps"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Exit is how a process ended.
type Exit struct {
	Status  syscall.WaitStatus
	PeakRSS int64 // bytes
}

// reaper takes the statuses of ended children. There must be only one in a process that reaps every child: a second
// one would take statuses that somebody waits for.
type reaper struct {
	all bool

	mu       sync.Mutex        // guards the fields below
	waiting  map[int]chan Exit // by pid
	early    map[int]earlyExit // ended before start knew them, and orphans; kept while a start is under way
	reaped   uint64            // how many processes were reaped
	began    map[uint64]int    // starts under way, by the value of reaped at their beginning
	children chan struct{}     // has a value when there may be children again
	stopped  bool
}

// earlyExit is an exit that nobody has asked for yet. The kernel gives a pid to many processes in turn, so at says
// which one this was.
type earlyExit struct {
	Exit
	at uint64 // reaper.reaped at that moment
}

// manyEarly is how many exits are kept before those are forgotten that nobody can ask for any more.
const manyEarly = 1024

func newReaper(all bool) *reaper {
	r := &reaper{all: all, waiting: map[int]chan Exit{},
		early: map[int]earlyExit{}, began: map[uint64]int{}, children: make(chan struct{}, 1)}
	if all {
		go r.loop()
	}
	return r
}

// start runs fork, which makes a child, and returns a channel that gets the child's exit.
func (r *reaper) start(fork func() (int, error)) (int, <-chan Exit, error) {
	r.mu.Lock()
	before := r.reaped
	r.began[before]++
	r.mu.Unlock()
	pid, err := fork()
	exited := make(chan Exit, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.began[before]--; r.began[before] == 0 {
		delete(r.began, before)
	}
	if err == nil {
		e, ok := r.early[pid]
		delete(r.early, pid)
		if ok && e.at > before {
			exited <- e.Exit
		} else if r.all {
			r.waiting[pid] = exited
		} else {
			go r.waitOne(pid, exited)
		}
	}
	if len(r.began) == 0 {
		clear(r.early)
	}
	r.wake()
	return pid, exited, err
}

// wake ends a wait of the loop for children.
func (r *reaper) wake() {
	select {
	case r.children <- struct{}{}:
	default:
	}
}

// loop reaps every child, ours and the orphans that became ours.
func (r *reaper) loop() {
	for {
		var ws syscall.WaitStatus
		var ru syscall.Rusage
		pid, err := syscall.Wait4(-1, &ws, unix.WALL, &ru)
		switch {
		case err == syscall.EINTR:
		case err != nil: // no children
			if !r.awaitChild() {
				return
			}
		case ws.Stopped(): // a traced child that begins, see forkLimited
		default:
			r.deliver(pid, exitOf(ws, &ru))
		}
	}
}

// awaitChild waits for the next start. An orphan can only come from a child of ours, so without children there is
// nothing to miss; the look around every second is for processes that an engine puts into the sandbox.
func (r *reaper) awaitChild() bool {
	select {
	case <-r.children:
	case <-time.After(time.Second):
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.stopped
}

func (r *reaper) deliver(pid int, e Exit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reaped++
	if ch, ok := r.waiting[pid]; ok {
		delete(r.waiting, pid)
		ch <- e
	} else if len(r.began) > 0 {
		r.early[pid] = earlyExit{e, r.reaped}
		r.prune()
	}
}

// prune forgets exits that no start under way can be the one of. The caller holds mu.
func (r *reaper) prune() {
	if len(r.early)%manyEarly != 0 {
		return
	}
	oldest := slices.Min(slices.Collect(maps.Keys(r.began)))
	maps.DeleteFunc(r.early, func(_ int, e earlyExit) bool { return e.at <= oldest })
}

// stop ends the loop once no children are left.
func (r *reaper) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	r.wake()
}

func (r *reaper) waitOne(pid int, exited chan<- Exit) {
	var ws syscall.WaitStatus
	var ru syscall.Rusage
	for {
		_, err := syscall.Wait4(pid, &ws, 0, &ru)
		if err != syscall.EINTR && !ws.Stopped() {
			break
		}
	}
	exited <- exitOf(ws, &ru)
}

func exitOf(ws syscall.WaitStatus, ru *syscall.Rusage) Exit {
	return Exit{Status: ws, PeakRSS: ru.Maxrss << 10}
}
