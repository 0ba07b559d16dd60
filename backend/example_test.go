package backend_test

import (
	"fmt"

	"github.com/workcell-dev/workcell/backend"
)

// A request sets some limits. The defaults complete them, and a ceiling bounds them.
func ExampleLimits() {
	limits := backend.Limits{MemoryBytes: 256 << 20}.Merge(backend.DefaultLimits())
	fmt.Println(limits.MemoryBytes>>20, "MiB,", limits.Validate())
	bounded := limits.Clamp(backend.Limits{MemoryBytes: 128 << 20})
	fmt.Println(bounded.MemoryBytes>>20, "MiB")
	// Output:
	// 256 MiB, <nil>
	// 128 MiB
}
