package backend

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Isolation is the boundary between the programs in a sandbox and the host's kernel. An empty value means unknown and
// is weaker than all other values.
type Isolation string

// Isolations, weakest first.
const (
	// IsolationProcess means processes in Linux namespaces. They share the host's kernel and programs.
	IsolationProcess Isolation = "process"
	// IsolationContainer means a container. It shares only the host's kernel.
	IsolationContainer Isolation = "container"
	// IsolationKernel means a separate kernel in user space, for example gVisor.
	IsolationKernel Isolation = "kernel"
	// IsolationVM means a virtual machine, for example with Kata Containers.
	IsolationVM Isolation = "vm"
)

// Isolations returns all known values, weakest first.
func Isolations() []Isolation {
	return []Isolation{IsolationProcess, IsolationContainer, IsolationKernel, IsolationVM}
}

func (i Isolation) rank() int { return slices.Index(Isolations(), i) }

// AtLeast reports whether i is as strong as floor. If floor is empty, AtLeast returns true. If floor is unknown, it
// returns false.
func (i Isolation) AtLeast(floor Isolation) bool {
	return floor == "" || floor.rank() >= 0 && i.rank() >= floor.rank()
}

// Stricter returns the stronger of two floors.
func (i Isolation) Stricter(other Isolation) Isolation {
	if other.AtLeast(i) {
		return other
	}
	return i
}

// RuntimeIsolation returns the isolation of containers that an OCI runtime runs. runtime is the program's path, the
// type of the containerd shim, or the handler of a RuntimeClass. Unknown runtimes count as containers, because a name
// does not prove stronger isolation.
func RuntimeIsolation(runtime string) Isolation {
	name := path.Base(runtime)
	name = strings.TrimPrefix(strings.TrimPrefix(name, "io.containerd."), "containerd-shim-")
	switch {
	case strings.HasPrefix(name, "runsc"), strings.HasPrefix(name, "gvisor"):
		return IsolationKernel
	case strings.HasPrefix(name, "kata"):
		return IsolationVM
	}
	return IsolationContainer
}

// IsolationError describes a sandbox with weaker isolation than required. It wraps ErrUnsupported.
type IsolationError struct{ Has, Wants Isolation }

// Error returns one line of text.
func (e *IsolationError) Error() string {
	return fmt.Sprintf("isolation %q is required, the sandbox has %q: %v", e.Wants, e.Has, ErrUnsupported)
}

// Unwrap returns ErrUnsupported.
func (e *IsolationError) Unwrap() error { return ErrUnsupported }
