package backendtest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// killMain ends the main process of the sandbox with that PID namespace, as the kernel or an operator would.
func killMain(t testing.TB, namespace string) error {
	t.Helper()
	p, err := os.FindProcess(mainProcess(t, namespace))
	if err != nil {
		return err
	}
	return p.Kill()
}

// mainProcess finds the main process of a sandbox on this machine, by the link of its PID namespace.
func mainProcess(t testing.TB, namespace string) int {
	t.Helper()
	namespace = strings.TrimSpace(namespace)
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		if ns, err := os.Readlink(dir + "/ns/pid"); err != nil || ns != namespace {
			continue
		}
		status, err := os.ReadFile(dir + "/status")
		if err != nil {
			continue // it ended
		}
		for line := range strings.Lines(string(status)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "NSpid:" && f[len(f)-1] == "1" {
				pid, err := strconv.Atoi(filepath.Base(dir))
				if err != nil {
					t.Fatal(err)
				}
				return pid
			}
		}
	}
	t.Fatalf("no main process with PID namespace %s on this machine", namespace)
	return 0
}
