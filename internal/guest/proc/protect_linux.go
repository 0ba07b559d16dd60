package proc

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"sync"

	"golang.org/x/sys/unix"
)

// Settings of the guest agent's process.
const (
	spareThreads = 15
	minProcs     = 3 // one for a blocked fork, one for the end of a garbage collection, and one for killStopped
	maxProcs     = 4
	gcPercent    = 50
	// memoryGoal is well above the guest agent's memory use, which is 9 MiB after thousands of commands. With 8 MiB, the
	// garbage collector ran all the time and used three quarters of the time of every request.
	memoryGoal = 20 << 20
)

// Protection describes the preparations to protect a guest agent's process.
type Protection struct {
	score *os.File // /proc/self/oom_score_adj; nil if the score cannot be changed

	making sync.WaitGroup // background work
	settle sync.Once      // calls guard before the first command
	key    limitKey
	tag    int  // limit protected from changes by the filter, see tagLimit
	writes bool // commands must not allocate space without writing
	err    error
}

// Unprotected returns a Protection for a guest agent inside another program.
func Unprotected() *Protection {
	p := new(Protection)
	p.tag, p.err = tagLimit()
	return p
}

// Protect prepares the calling process to be a guest agent among hostile processes of the same user. It must be the
// first action of the process. A part of the work runs in the background. A server with this Protection starts no
// command before the work is done.
func Protect() *Protection {
	// Descriptors leaked by a runtime into the guest agent must not reach commands (CVE-2024-21626).
	_ = unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) // fails on old kernels
	// This process is not dumpable from the first instruction on, so it cannot access /proc/self. No command is running
	// yet.
	setDumpable(1)
	p := Unprotected()
	p.key = newLimitKey()
	if score, err := os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0); err == nil {
		p.score = score
	}
	HideProcess()
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})    // lowering a limit cannot fail
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) // for a guest agent other than the init process
	procs := min(max(minProcs, runtime.GOMAXPROCS(0)), maxProcs)
	runtime.GOMAXPROCS(procs)        // each may need a thread
	debug.SetGCPercent(gcPercent)    //
	debug.SetMemoryLimit(memoryGoal) // leave memory to commands
	p.making.Go(func() {
		catchSignals()
		makeThreads(spareThreads)
	})
	return p
}

// collector is held while the garbage collector is off.
var collector sync.Mutex

// pauseCollector turns the garbage collector off and returns a function to turn it on again. The Go runtime cannot stop
// a goroutine during a fork. A garbage collection would therefore stop all other goroutines, including killStopped,
// until another command lets the child process continue.
func pauseCollector() (resume func()) {
	collector.Lock()
	limit, percent := debug.SetMemoryLimit(math.MaxInt64), debug.SetGCPercent(-1)
	var m runtime.MemStats
	runtime.ReadMemStats(&m) // waits for the start of a collection, or the end
	debug.SetGCPercent(-1)   // waits for the rest of a collection that has just started
	return func() {
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
		collector.Unlock()
	}
}

// Await waits until the process is protected, or returns an error.
func (p *Protection) Await() error {
	p.making.Wait()
	p.settle.Do(p.guard)
	return p.err
}

// RefuseAllocation prevents commands from allocating space without writing. It must be called before the first Await.
func (p *Protection) RefuseAllocation() { p.writes = true }

// guard installs the filters. The guest agent must be the init process of the PID namespace, and all threads must have
// been started. Only then do the threads have the lowest IDs, and no other process can get one of these IDs.
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

// HideProcess prevents processes of the same user from reading this process's memory, environment, and descriptors,
// even if an engine made the program file readable.
func HideProcess() { setDumpable(0) }

func setDumpable(v uintptr) { _ = unix.Prctl(unix.PR_SET_DUMPABLE, v, 0, 0, 0) } // cannot fail with 0 and 1

// makeThreads makes the runtime start threads now, which it keeps. Later, if commands use all processes of the sandbox,
// the runtime could not start threads, and a Go program then aborts.
func makeThreads(n int) {
	var ready, done sync.WaitGroup
	release := make(chan struct{})
	for range n {
		ready.Add(1)
		done.Go(func() {
			runtime.LockOSThread()
			ready.Done()
			<-release
			runtime.UnlockOSThread() // returns the thread to the runtime's idle threads
		})
	}
	ready.Wait()
	close(release)
	done.Wait()
}
