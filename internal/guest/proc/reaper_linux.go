package proc

import (
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Exit describes how a process exited.
type Exit struct {
	Status  syscall.WaitStatus
	PeakRSS int64 // bytes
}

// reaper collects the exit statuses of all child processes. A process must have only one running reaper, to avoid
// taking statuses for which another goroutine waits.
type reaper struct {
	// mu guards the fields below. It is held during a fork, to avoid reaping a child before it is in waiting.
	mu       sync.Mutex
	waiting  map[int]chan Exit // by process ID
	children chan struct{}     // contains a value if new children may exist
	stopped  bool
}

func newReaper() *reaper {
	r := &reaper{waiting: map[int]chan Exit{}, children: make(chan struct{}, 1)}
	go r.loop()
	return r
}

// start calls fork, which creates a child process, and returns a channel for the child's exit.
func (r *reaper) start(fork func() (int, error)) (int, <-chan Exit, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err := fork()
	if err != nil {
		return 0, nil, err
	}
	exited := make(chan Exit, 1)
	r.waiting[pid] = exited
	r.wake()
	return pid, exited, nil
}

// wake ends the loop's wait for children.
func (r *reaper) wake() {
	select {
	case r.children <- struct{}{}:
	default:
	}
}

// loop reaps all children, including orphans, which became children of this process. It waits without reaping, because
// the kernel may assign the process ID of a reaped child to the child of a concurrent fork.
func (r *reaper) loop() {
	for {
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		switch {
		case err == nil:
			if !r.reap() {
				return
			}
		case err != unix.EINTR && !r.awaitChild(): // no children
			return
		}
	}
}

// reap reaps all exited children. It returns false after stop if no command is left.
func (r *reaper) reap() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.stopped || len(r.waiting) > 0 {
		var ws syscall.WaitStatus
		var ru syscall.Rusage
		pid, err := syscall.Wait4(-1, &ws, unix.WNOHANG|unix.WALL, &ru)
		if err == syscall.EINTR {
			continue
		}
		if pid <= 0 {
			return true
		}
		if exited := r.waiting[pid]; exited != nil && !ws.Stopped() { // a traced child stops at the start, see forkLimited
			delete(r.waiting, pid)
			exited <- Exit{Status: ws, PeakRSS: ru.Maxrss << 10}
		}
	}
	return false
}

// awaitChild waits for the next start of a child. Orphans only come from existing children, so without children none
// can be missed. The check every second is for processes started by an engine in the sandbox.
func (r *reaper) awaitChild() bool {
	select {
	case <-r.children:
	case <-time.After(time.Second):
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.stopped
}

// stop ends the loop when no commands are left.
func (r *reaper) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
	r.wake()
}
