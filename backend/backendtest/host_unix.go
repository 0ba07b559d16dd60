//go:build unix

package backendtest

import (
	"syscall"
	"testing"
)

// freeze stops the main process of the sandbox with this PID namespace.
func freeze(t testing.TB, namespace string) error {
	t.Helper()
	return syscall.Kill(mainProcess(t, namespace), syscall.SIGSTOP)
}
