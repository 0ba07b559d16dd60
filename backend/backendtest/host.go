package backendtest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// killMain kills the main process of the sandbox with this PID namespace, as the kernel or an operator might do.
func killMain(t testing.TB, namespace string) error {
	t.Helper()
	p, err := os.FindProcess(mainProcess(t, namespace))
	if err != nil {
		return err
	}
	return p.Kill()
}

// mainProcess returns the main process of a sandbox on this host. namespace is the link of the PID namespace.
func mainProcess(t testing.TB, namespace string) int {
	t.Helper()
	for _, pid := range members(t, namespace) {
		status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
		if err != nil {
			continue // the process exited
		}
		for line := range strings.Lines(string(status)) {
			if f := strings.Fields(line); len(f) > 1 && f[0] == "NSpid:" && f[len(f)-1] == "1" {
				return pid
			}
		}
	}
	t.Fatalf("no main process with PID namespace %s on this machine", namespace)
	return 0
}

// members returns the running processes of a PID namespace.
func members(t testing.TB, namespace string) []int {
	t.Helper()
	namespace = strings.TrimSpace(namespace)
	dirs, err := filepath.Glob("/proc/[0-9]*")
	must(t, err)
	var pids []int
	for _, dir := range dirs {
		if ns, err := os.Readlink(dir + "/ns/pid"); err != nil || ns != namespace {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		must(t, err)
		pids = append(pids, pid)
	}
	return pids
}

// alive stores the processes of a sandbox at one moment, with their start times. The start times are necessary because
// the kernel reuses namespaces and process IDs.
type alive map[int]string

// processesOf returns the current processes of a PID namespace.
func processesOf(t testing.TB, namespace string) alive {
	t.Helper()
	a := alive{}
	for _, pid := range members(t, namespace) {
		if start := startOf(pid); start != "" {
			a[pid] = start
		}
	}
	return a
}

// startOf returns the start time of a process, or an empty string if the process has exited.
func startOf(pid int) string {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return ""
	}
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:])) // the fields from the state on
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return ""
	}
	return f[19]
}

// gone fails the test if one of the processes is still running.
func (a alive) gone(t testing.TB, after string) {
	t.Helper()
	for pid, start := range a {
		if startOf(pid) == start {
			t.Errorf("process %d outlives %s", pid, after)
		}
	}
}
