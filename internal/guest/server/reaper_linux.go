package server

import (
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// exit is how a process ended.
type exit struct {
	status  syscall.WaitStatus
	peakRSS int64 // bytes
}

// reaper takes the statuses of ended children. There must be only one in a process that reaps every child: a second
// one would take statuses that somebody waits for.
type reaper struct {
	all    bool
	killed func() // called when a child has died of SIGKILL

	mu      sync.Mutex        // guards the fields below
	waiting map[int]chan exit // by pid
	early   map[int]exit      // ended before start knew them; kept while a start is under way
	forks   int               // starts under way
	born    chan struct{}     // has a value when there may be children again
	stopped bool
}

func newReaper(all bool, killed func()) *reaper {
	r := &reaper{all: all, killed: killed, waiting: map[int]chan exit{}, early: map[int]exit{}, born: make(chan struct{}, 1)}
	if all {
		go r.loop()
	}
	return r
}

// start runs fork, which makes a child, and gives a channel that gets the child's exit.
func (r *reaper) start(fork func() (int, error)) (int, <-chan exit, error) {
	r.mu.Lock()
	r.forks++
	r.mu.Unlock()
	pid, err := fork()
	exited := make(chan exit, 1)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.forks--
	if err == nil {
		if e, ok := r.early[pid]; ok {
			exited <- e
		} else if r.all {
			r.waiting[pid] = exited
		} else {
			go r.waitOne(pid, exited)
		}
	}
	if r.forks == 0 {
		clear(r.early)
	}
	select {
	case r.born <- struct{}{}:
	default:
	}
	return pid, exited, err
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
			if !r.awaitBirth() {
				return
			}
		default:
			if ws.Signaled() && ws.Signal() == unix.SIGKILL {
				r.killed()
			}
			r.deliver(pid, exit{status: ws, peakRSS: ru.Maxrss << 10})
		}
	}
}

// awaitBirth waits for the next start. An orphan can only come from a child of ours, so without children there is
// nothing to miss; the look around every second is for processes that an engine puts into the sandbox.
func (r *reaper) awaitBirth() bool {
	select {
	case <-r.born:
	case <-time.After(time.Second):
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.stopped
}

func (r *reaper) deliver(pid int, e exit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ch, ok := r.waiting[pid]; ok {
		delete(r.waiting, pid)
		ch <- e
	} else if r.forks > 0 {
		r.early[pid] = e
	}
}

// stop ends the loop once no children are left.
func (r *reaper) stop() {
	r.mu.Lock()
	r.stopped = true
	r.mu.Unlock()
	select {
	case r.born <- struct{}{}:
	default:
	}
}

func (r *reaper) waitOne(pid int, exited chan<- exit) {
	var ws syscall.WaitStatus
	var ru syscall.Rusage
	for {
		_, err := syscall.Wait4(pid, &ws, 0, &ru)
		if err != syscall.EINTR {
			break
		}
	}
	if ws.Signaled() && ws.Signal() == unix.SIGKILL {
		r.killed()
	}
	exited <- exit{status: ws, peakRSS: ru.Maxrss << 10}
}
