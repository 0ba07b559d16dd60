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

// tracker tags every exec with a value that all of its processes inherit and none of them can take off: the hard
// RLIMIT_LOCKS. The kernel has not enforced that limit since Linux 2.4, a child has it from before its first
// instruction, it survives setsid, a double fork, a cleared environment and exec, and without CAP_SYS_RESOURCE it can
// only be lowered. The guest lowers its own by one before each fork, so every exec's tag is new and smaller than those
// before. The guest's filter keeps processes from lowering it. If RLIMIT_LOCKS is not available, the tag is RLIMIT_RSS,
// which no kernel enforces either.
type tracker struct {
	limit int           // see tagLimit
	base  uint64        // above the first tag
	last  atomic.Uint64 // last tag given; written with forking held

	forking sync.Mutex // held around a fork: the tag is the guest's own while the child is made

	own   int  // the guest's pid
	alone bool // the guest is the init of its pid namespace
	key   limitKey
}

// tagFloor is what a limit must allow, so that there is room for tags.
const tagFloor = 1 << 61

// tagLimit returns the limit whose values are tags. gVisor does not take RLIMIT_LOCKS, and an engine may have set it.
func tagLimit() (int, error) {
	for _, limit := range []int{unix.RLIMIT_LOCKS, unix.RLIMIT_RSS} {
		var now unix.Rlimit
		if unix.Prlimit(0, limit, nil, &now) == nil && now.Max >= tagFloor && unix.Prlimit(0, limit, &now, nil) == nil {
			return limit, nil
		}
	}
	return 0, errors.New("the engine limits both RLIMIT_LOCKS and RLIMIT_RSS; remove one of them from its default-ulimits")
}

// newTracker tags the guest itself.
func newTracker(p *Protection) *tracker {
	t := &tracker{own: os.Getpid(), alone: os.Getpid() == 1, key: p.key, limit: p.tag}
	var old unix.Rlimit
	if p.err != nil || unix.Prlimit(0, t.limit, nil, &old) != nil || old.Max < tagFloor {
		return t // no command starts, see Await
	}
	// A random start keeps two guests in one pid namespace from giving the same tags.
	// There is room for guests within guests.
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails, by its documentation
	t.base = min(old.Max, 1<<62) - binary.LittleEndian.Uint64(b[:])>>8
	t.last.Store(t.base)
	_ = t.key.limit(0, t.limit, t.base) // the first fork reports a failure
	return t
}

// nextTag tags the next child. The caller holds forking until the child is made.
func (t *tracker) nextTag() (uint64, error) {
	tag := t.last.Load() - 1
	if err := t.key.limit(0, t.limit, tag); err != nil {
		return 0, os.NewSyscallError("prlimit", err)
	}
	t.last.Store(tag)
	return tag, nil
}

// TagOf reads a process's tag; false when it has none or is gone.
func (t *tracker) TagOf(pid int) (uint64, bool) {
	var l unix.Rlimit
	if unix.Prlimit(pid, t.limit, nil, &l) != nil {
		return 0, false
	}
	return l.Max, l.Max < t.base && !(t.limit == unix.RLIMIT_RSS && t.isOutside(pid))
}

// isOutside reports whether a process, or one that it descends from, came from outside, as a connection of the host
// does: gVisor gives those the limits of the guest.
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
