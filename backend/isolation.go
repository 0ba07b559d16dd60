package backend

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// Isolation is the boundary between the programs of a sandbox and the kernel of their machine. Empty means unknown,
// which is weaker than all others.
type Isolation string

// Isolations, the weakest first.
const (
	// IsolationProcess: processes in Linux namespaces, which share the kernel and the programs of the host.
	IsolationProcess Isolation = "process"
	// IsolationContainer: a container, which shares only the kernel.
	IsolationContainer Isolation = "container"
	// IsolationKernel: a separate kernel in user space, such as gVisor.
	IsolationKernel Isolation = "kernel"
	// IsolationVM: a virtual machine, such as those of Kata Containers.
	IsolationVM Isolation = "vm"
)

// Isolations returns the known values, the weakest first.
func Isolations() []Isolation {
	return []Isolation{IsolationProcess, IsolationContainer, IsolationKernel, IsolationVM}
}

func (i Isolation) rank() int { return slices.Index(Isolations(), i) }

// AtLeast reports whether i is as strong as floor. An empty floor requires nothing, an unknown one is never reached.
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

// RuntimeIsolation returns the isolation of containers that an OCI runtime creates. runtime is the path of its program,
// the type of its containerd shim, or the handler of a RuntimeClass. Unknown runtimes count as containers: their names
// don't show more.
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

// IsolationError reports that a sandbox is, or would be, less isolated than required. It wraps ErrUnsupported.
type IsolationError struct{ Has, Wants Isolation }

// Error returns one line.
func (e *IsolationError) Error() string {
	return fmt.Sprintf("isolation %q is required, the sandbox has %q: %v", e.Wants, e.Has, ErrUnsupported)
}

// Unwrap returns ErrUnsupported.
func (e *IsolationError) Unwrap() error { return ErrUnsupported }
