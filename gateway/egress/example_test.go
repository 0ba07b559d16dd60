package egress_test

import (
	"fmt"

	"github.com/workcell-dev/workcell/gateway/egress"
)

// Env returns the environment variables that make programs use the proxy.
func ExampleEnv() {
	fmt.Println(egress.Env("127.0.0.1:3128")["HTTPS_PROXY"])
	// Output: http://127.0.0.1:3128
}
