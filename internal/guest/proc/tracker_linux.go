package proc

import (
	"crypto/rand"
	"encoding/binary"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// tracker tags every exec with a value that all of its processes inherit and none of them can take off: the hard
// RLIMIT_LOCKS. The kernel has not enforced that limit since Linux 2.4, a child has it from before its first
// instruction, it survives setsid, a double fork, a cleared environment and exec, and without CAP_SYS_RESOURCE it can
// only be lowered. The guest lowers its own by one before each fork, so every exec's tag is new and smaller than those
// before. Where the guest's filter is, a process cannot lower it either; elsewhere it can, to the tag of a later exec, or
// below all of them, see mine. Where it is not to be had, see tagLimit, it is RLIMIT_RSS, which no kernel enforces either.
type tracker struct {
	works bool          // the kernel takes the tags
	limit int           // see tagLimit
	base  uint64        // above the first tag
	last  atomic.Uint64 // last tag given; written with forking held

	forking sync.Mutex // held around a fork: the tag is the guest's own while the child is made

	own   int  // the guest's pid
	alone bool // the guest is the init of its pid namespace: whatever is tagged here, it tagged
	key   limitKey
}

// noTag is the tag of a process where tags do not work.
const noTag = ^uint64(0)

// tagFloor is what a limit must allow, so that there is room for tags.
const tagFloor = 1 << 61

// tagLimit returns the limit whose values are tags. gVisor does not take RLIMIT_LOCKS, and an engine may have set it.
func tagLimit() int {
	var now unix.Rlimit
	if unix.Prlimit(0, unix.RLIMIT_LOCKS, nil, &now) == nil && now.Max >= tagFloor && unix.Prlimit(0, unix.RLIMIT_LOCKS, &now, nil) == nil {
		return unix.RLIMIT_LOCKS
	}
	return unix.RLIMIT_RSS
}

// newTracker tags the guest itself, where the kernel takes tags.
func newTracker(p *Protection) *tracker {
	t := &tracker{own: os.Getpid(), alone: os.Getpid() == 1, key: p.limitKey(), limit: tagLimit()}
	if p != nil {
		t.limit = p.tag
	}
	// A random start keeps two guests in one pid namespace from giving the same tags.
	// There is room for guests within guests.
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails, by its documentation
	var old unix.Rlimit
	_ = unix.Prlimit(0, t.limit, nil, &old) // else it allows nothing
	t.base = min(old.Max, 1<<62) - binary.LittleEndian.Uint64(b[:])>>8
	t.last.Store(t.base)
	t.works = old.Max >= tagFloor && t.key.limit(0, t.limit, t.base) == nil
	return t
}

// nextTag tags the next child. The caller holds forking until the child is made.
func (t *tracker) nextTag() uint64 {
	if !t.works {
		return noTag
	}
	tag := t.last.Load() - 1
	if t.key.limit(0, t.limit, tag) != nil {
		return noTag
	}
	t.last.Store(tag)
	return tag
}

// tagOf reads a process's tag; false when it has none or is gone.
func (t *tracker) tagOf(pid int) (uint64, bool) {
	var l unix.Rlimit
	if !t.works || unix.Prlimit(pid, t.limit, nil, &l) != nil {
		return 0, false
	}
	return l.Max, l.Max < t.base && !(t.limit == unix.RLIMIT_RSS && t.isOutside(pid))
}

// isOutside reports whether a process, or one that it descends from, came from outside, as a connection of the host does: gVisor gives
// those the limits of the guest.
func (t *tracker) isOutside(pid int) bool {
	for range maxAncestors {
		p, ok := readStat(pid)
		if !ok || pid == t.own || p.ppid == 0 {
			return ok && pid != t.own
		}
		pid = p.ppid
	}
	return false
}
