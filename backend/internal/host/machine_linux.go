package host

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine returns what this machine's distribution calls itself, and the release of its kernel.
func Machine() (system, kernel string) {
	var u unix.Utsname
	if unix.Uname(&u) == nil { // always
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

// OnThread runs f on a thread that ends with it, so that f may change what belongs to the thread. It is never the
// process's first, which cannot end and whose namespaces count as the process's.
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

// InNetns runs f on a thread of its own in a network namespace.
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
