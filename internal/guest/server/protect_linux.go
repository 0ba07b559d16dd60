package server

import (
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"

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

// Protect makes the calling process fit to be a guest among hostile processes of the same user. It must be the first
// thing that the process does. The file that it returns is for Config.OOMScore; nil when the score cannot be changed.
func Protect() *os.File {
	// Descriptors that a runtime leaked into the guest must not reach commands (CVE-2024-21626).
	_ = unix.CloseRange(3, ^uint(0), unix.CLOSE_RANGE_CLOEXEC) // an old kernel: Go opens all of its own that way
	// Opened before the process stops being dumpable, which takes away its access to its own /proc.
	score, err := os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0)
	if err != nil {
		score = nil
	}
	HideProcess()
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})     // lowering a limit cannot fail
	_ = unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  // for a guest that is not the init of its namespace
	runtime.GOMAXPROCS(min(maxProcs, runtime.GOMAXPROCS(0))) // each may need a thread
	debug.SetGCPercent(gcPercent)                            //
	debug.SetMemoryLimit(memoryGoal)                         // what commands leave of the sandbox's memory is not ours
	catchSignals()
	makeThreads(spareThreads)
	return score
}

// HideProcess keeps processes of the same user from reading this one's memory, environment and descriptors.
func HideProcess() { _ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0) } // cannot fail with these arguments

// catchSignals makes every signal that a command may send harmless. They are caught, not ignored, because commands
// would inherit that they are ignored.
func catchSignals() {
	c := make(chan os.Signal, 16)
	for sig := syscall.Signal(1); sig < 65; sig++ {
		switch sig {
		case unix.SIGKILL, unix.SIGSTOP: // cannot be caught; the kernel keeps them from an init
		case unix.SIGCHLD, unix.SIGURG, unix.SIGPROF: // harmless, and the Go runtime uses them
		default:
			signal.Notify(c, sig)
		}
	}
	go func() {
		for range c { // drained only so that the channel stays small
		}
	}()
}

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
