package backend_test

import (
	"errors"
	"testing"

	"github.com/workcell-dev/workcell/backend"
)

// TestRuntimeIsolation verifies that only gVisor and Kata count as stronger than a container, under every name used by
// an engine.
func TestRuntimeIsolation(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]backend.Isolation{
		"runc": "container", "/usr/bin/crun": "container", "io.containerd.runc.v2": "container", "": "container",
		"my-sandbox": "container", "/opt/kata/not-it": "container",
		"runsc": "kernel", "/usr/local/bin/runsc": "kernel", "runsc-kvm": "kernel", "gvisor": "kernel",
		"io.containerd.runsc.v1": "kernel",
		"kata":                   "vm", "kata-qemu": "vm", "io.containerd.kata.v2": "vm",
		"/opt/kata/bin/containerd-shim-kata-v2": "vm",
	} {
		if got := backend.RuntimeIsolation(name); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}

// TestFloors verifies that each isolation reaches its own floor and weaker floors, and no isolation an unknown floor.
func TestFloors(t *testing.T) {
	t.Parallel()
	all := append([]backend.Isolation{""}, backend.Isolations()...)
	for i, has := range all {
		for j, floor := range all {
			if got := has.AtLeast(floor); got != (i >= j) {
				t.Errorf("%q at least %q: %v", has, floor, got)
			}
			if got := has.Stricter(floor); got != all[max(i, j)] {
				t.Errorf("the stricter of %q and %q is %q", has, floor, got)
			}
		}
		if has.AtLeast("strong") || has.Stricter("strong").AtLeast("strong") {
			t.Errorf("%q reaches an unknown floor", has)
		}
	}
	if err := error(&backend.IsolationError{Has: "container", Wants: "vm"}); !errors.Is(err, backend.ErrUnsupported) {
		t.Error(err)
	}
}
