package host

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine returns the name of the host's distribution and kernel release.
func Machine() (system, kernel string) {
	var u unix.Utsname
	if unix.Uname(&u) == nil { // always succeeds
		kernel = unix.ByteSliceToString(u.Release[:])
	}
	b, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "linux", kernel
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			if s, err := strconv.Unquote(v); err == nil {
				return s, kernel
			}
			return v, kernel
		}
	}
	return "linux", kernel
}

// OnThread runs f on a thread and ends this thread afterwards, so f may change the thread's attributes, for example
// namespaces. OnThread never uses the first thread of the process. The first thread cannot exit, and its namespaces
// count as the namespaces of the process.
func OnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			defer runtime.UnlockOSThread()
			done <- OnThread(f) // runs on another thread because this goroutine occupies the first thread
			return
		}
		done <- f() // the thread stays locked, so the runtime does not reuse it
	}()
	return <-done
}

// InNetns runs f in a network namespace, on a separate thread.
func InNetns(path string, f func() error) error {
	return OnThread(func() error {
		ns, err := os.Open(path)
		if err != nil {
			return err
		}
		defer ns.Close() //nolint:errcheck // only a handle
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter network namespace: %w", err)
		}
		return f()
	})
}
