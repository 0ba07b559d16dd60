package kit

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// OnThread runs f on a thread that ends with it, so that f may change what belongs to the thread. It is never the process's
// first, which cannot end and whose namespaces count as the process's.
func OnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread()
			done <- OnThread(f) // on another thread, because this one is taken meanwhile
			return
		}
		done <- f() // never unlocked, so the thread is not used again
	}()
	return <-done
}
