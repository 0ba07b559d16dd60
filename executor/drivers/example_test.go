package drivers_test

import (
	"fmt"

	"github.com/workcell-dev/workcell/executor/drivers"
)

// Of returns the agent for the command in a prompt file.
func ExampleOf() {
	gemini := drivers.Of("gemini", nil, "")
	fmt.Println(gemini.Driver.Name(), gemini.Name)
	other := drivers.Of("acp", []string{"gemini", "--acp"}, "")
	fmt.Println(other.Driver.Name(), other.Name)
	// Output:
	// gemini gemini
	// acp gemini
}
