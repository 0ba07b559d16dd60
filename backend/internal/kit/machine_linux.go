package kit

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// OSName returns what this machine's distribution calls itself.
func OSName() string {
	b, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "linux"
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			if s, err := strconv.Unquote(v); err == nil {
				return s
			}
			return v
		}
	}
	return "linux"
}

// KernelRelease returns the release of this machine's kernel.
func KernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil { // never
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}
