package proc

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// tracker tags every command with a value. All processes of the command inherit the value and cannot remove it: the
// hard limit of RLIMIT_LOCKS. The kernel has not enforced this limit since Linux 2.4. A child has the tag from the
// first instruction on. The tag survives setsid, a double fork, a cleared environment, and exec. Without
// CAP_SYS_RESOURCE, the limit can only be lowered. Before each fork, the guest agent lowers the limit of the main
// process by one, so every command gets a new tag, smaller than all earlier tags. The guest agent's system call filter
// prevents processes from lowering the limit. If RLIMIT_LOCKS is not available, the tag is RLIMIT_RSS, which no kernel
// enforces either.
type tracker struct {
	limit int           // see tagLimit
	base  uint64        // higher than the first tag
	last  atomic.Uint64 // last assigned tag; written with forking held

	forking sync.Mutex // held during a fork, while the guest agent itself has the child's tag

	own   int  // process ID of the guest agent
	alone bool // the guest agent is the init process of the PID namespace
	key   limitKey
}

// tagFloor is the minimum value of a limit, to keep enough tags available.
const tagFloor = 1 << 61

// tagLimit returns the resource limit with the tags. gVisor does not support RLIMIT_LOCKS, and an engine may have set
// it.
func tagLimit() (int, error) {
	for _, limit := range []int{unix.RLIMIT_LOCKS, unix.RLIMIT_RSS} {
		var now unix.Rlimit
		if unix.Prlimit(0, limit, nil, &now) == nil && now.Max >= tagFloor && unix.Prlimit(0, limit, &now, nil) == nil {
			return limit, nil
		}
	}
	return 0, errors.New("the engine limits both RLIMIT_LOCKS and RLIMIT_RSS; remove one of them from its default-ulimits")
}

// newTracker returns a tracker and sets the tag of the guest agent.
func newTracker(p *Protection) *tracker {
	t := &tracker{own: os.Getpid(), alone: os.Getpid() == 1, key: p.key, limit: p.tag}
	var old unix.Rlimit
	if p.err != nil || unix.Prlimit(0, t.limit, nil, &old) != nil || old.Max < tagFloor {
		return t // no command can start, see Await
	}
	// A random start value prevents two guest agents in one PID namespace from assigning the same tags. The value leaves
	// room for nested guest agents.
	var b [8]byte
	_, _ = rand.Read(b[:]) // documented to never fail
	t.base = min(old.Max, 1<<62) - binary.LittleEndian.Uint64(b[:])>>8
	t.last.Store(t.base)
	_ = t.key.limit(0, t.limit, t.base) // the first fork reports a failure
	return t
}

// nextTag sets the tag for the next child. The caller must hold forking until the child is created.
func (t *tracker) nextTag() (uint64, error) {
	tag := t.last.Load() - 1
	if err := t.key.limit(0, t.limit, tag); err != nil {
		return 0, os.NewSyscallError("prlimit", err)
	}
	t.last.Store(tag)
	return tag, nil
}

// TagOf returns a process's tag. It returns false if the process has no tag or has exited.
func (t *tracker) TagOf(pid int) (uint64, bool) {
	var l unix.Rlimit
	if unix.Prlimit(pid, t.limit, nil, &l) != nil {
		return 0, false
	}
	return l.Max, l.Max < t.base && !(t.limit == unix.RLIMIT_RSS && t.isOutside(pid))
}

// isOutside reports whether a process or an ancestor was started from outside the sandbox, for example a connection of
// the host. gVisor gives these processes the guest agent's limits.
func (t *tracker) isOutside(pid int) bool {
	const maxAncestors = 64
	for range maxAncestors {
		p, ok := readStat(pid)
		if !ok || pid == t.own || p.ppid == 0 {
			return ok && pid != t.own
		}
		pid = p.ppid
	}
	return false
}
