package containerd

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// inThread runs f on a thread of its own in new namespaces; the thread, and with it the namespaces that nothing else
// holds, ends with f.
func inThread(namespaces int, f func() error) error {
	return onThread(func() error {
		if err := unix.Unshare(namespaces); err != nil {
			return fmt.Errorf("new namespaces: %w", err)
		}
		return f()
	})
}

// onThread runs f on a thread that ends with it. It is never the process's first, which cannot end and whose namespaces
// count as the process's.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread()
			done <- onThread(f) // on another thread, because this one is taken meanwhile
			return
		}
		done <- f() // never unlocked, so the thread is not used again
	}()
	return <-done
}
