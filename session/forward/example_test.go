package forward_test

import (
	"fmt"

	"github.com/workcell-dev/workcell/session/forward"
)

func ExampleParsePort() {
	port, err := forward.ParsePort("8080:80")
	fmt.Println(port.Host, port.Sandbox, err)
	// Output: 8080 80 <nil>
}
