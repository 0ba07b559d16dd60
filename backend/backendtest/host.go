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
	for _, pid := range members(t, namespace) {
		status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
		if err != nil {
			continue // it ended
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

// members returns the processes of a PID namespace that live.
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

// alive is the processes of a sandbox as they were at some time, with their start times: namespaces and process ids
// are used again.
type alive map[int]string

// processesOf notes the processes of a PID namespace.
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

// startOf returns when a process was started, and nothing when it has ended.
func startOf(pid int) string {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return ""
	}
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:])) // from the state on
	if len(f) < 20 || f[0] == "Z" || f[0] == "X" {
		return ""
	}
	return f[19]
}

// gone fails when one of the processes still runs.
func (a alive) gone(t testing.TB, after string) {
	t.Helper()
	for pid, start := range a {
		if startOf(pid) == start {
			t.Errorf("process %d outlives %s", pid, after)
		}
	}
}
