package forward_test

import (
	"fmt"
	"testing"

	"github.com/workcell-dev/workcell/session/forward"
)

func ExampleParsePort() {
	port, err := forward.ParsePort("8080:80")
	fmt.Println(port.Host, port.Sandbox, err)
	// Output: 8080 80 <nil>
}

// TestParsePort verifies that only an empty host port means any free port.
func TestParsePort(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"", "0", "0:80", "00:80", ":0", "80:", "65536"} {
		if port, err := forward.ParsePort(bad); err == nil {
			t.Errorf("%q: %+v", bad, port)
		}
	}
}
