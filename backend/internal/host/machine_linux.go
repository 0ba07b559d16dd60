package host

import (
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
