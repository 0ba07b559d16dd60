package proc

import (
	"os"
	"runtime"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"
)

// Settings of a guest's process.
const (
	spareThreads = 14
	maxProcs     = 4
	gcPercent    = 50
	// memoryGoal stays well above what the guest holds, 9 MiB after thousands of commands: at 8 MiB the collector never
	// rested and took three quarters of the time of every request.
	memoryGoal = 20 << 20
)

// Protection is what a process has done to be fit to be a guest.
type Protection struct {
	score *os.File // /proc/self/oom_score_adj; nil when the score cannot be changed

	making sync.WaitGroup // what runs in the background
	settle sync.Once      // guards, before the first command
	key    limitKey
	tag    int  // limit that the filter keeps commands from changing, see tagLimit
	writes bool // commands must not allocate space without writing
	err    error
}

// Unprotected is for a guest inside another program.
func Unprotected() *Protection {
	p := new(Protection)
	p.tag, p.err = tagLimit()
	return p
}

// Protect makes the calling process fit to be a guest among hostile processes of the same user. It must be the first
// thing that the process does. Part of it runs in the background; a server with this Protection starts no command
// before that is done.
func Protect() *Protection {
	// Descriptors that a runtime leaked into the guest must not reach commands (CVE-2024-21626).
	_ = unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) // an old kernel: Go opens all of its own that way
	// A process that is not dumpable, as this one from its first instruction, has no access to its own /proc. No command
	// runs yet.
	setDumpable(1)
	p := Unprotected()
	p.key = newLimitKey()
	if score, err := os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0); err == nil {
		p.score = score
	}
	HideProcess()
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})     // lowering a limit cannot fail
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  // for a guest that is not the init of its namespace
	runtime.GOMAXPROCS(min(maxProcs, runtime.GOMAXPROCS(0))) // each may need a thread
	debug.SetGCPercent(gcPercent)                            //
	debug.SetMemoryLimit(memoryGoal)                         // what commands leave of the sandbox's memory is not ours
	p.making.Go(func() {
		catchSignals()
		makeThreads(spareThreads)
	})
	return p
}

// Await waits until the process is fit, or returns why it is not.
func (p *Protection) Await() error {
	p.making.Wait()
	p.settle.Do(p.guard)
	return p.err
}

// RefuseAllocation makes commands write the space that they take. It must be called before the first Await.
func (p *Protection) RefuseAllocation() { p.writes = true }

// guard installs the filters. The guest must be the init of its pid namespace: only then are the ids of its threads,
// which must all have been started, the lowest and never another process's.
func (p *Protection) guard() {
	if os.Getpid() != 1 || p.key == (limitKey{}) || p.err != nil {
		return
	}
	var last uint32
	if last, p.err = lastThread(); p.err == nil {
		p.err = install(guardFilter(p.key, p.tag, last))
	}
	if p.err == nil && p.writes {
		p.err = install(writeFilter())
	}
}

// HideProcess keeps processes of the same user from reading this one's memory, environment and descriptors, also where
// an engine made its file one that its user can read.
func HideProcess() { setDumpable(0) }

func setDumpable(v uintptr) { _ = unix.Prctl(unix.PR_SET_DUMPABLE, v, 0, 0, 0) } // cannot fail with 0 and 1

// makeThreads makes the runtime start threads now, which it keeps. Later, when a command has used up the sandbox's
// processes, it could not, and a Go program that cannot make a thread aborts.
func makeThreads(n int) {
	var ready, done sync.WaitGroup
	release := make(chan struct{})
	for range n {
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			ready.Done()
			<-release
			runtime.UnlockOSThread() // back to the runtime's idle threads
		})
	}
	ready.Wait()
	close(release)
	done.Wait()
}
