package hosttools_test

import (
	"context"
	"fmt"
	"log"

	"github.com/workcell-dev/workcell/gateway/hosttools"
)

// A grant selects the host tools that sandboxed code can call.
func Example() {
	lookup := hosttools.Tool{Definition: hosttools.Definition{Name: "lookup", Input: map[string]any{"type": "object"}}}
	lookup.Handle = func(context.Context, hosttools.Call) (hosttools.Result, error) {
		return hosttools.Result{Text: "sent"}, nil
	}
	registry, err := hosttools.New(nil, hosttools.Static("orders", lookup))
	if err != nil {
		log.Fatal(err)
	}
	defer registry.Close()
	grant := hosttools.Grant{Rules: hosttools.Rules{Allow: []hosttools.Rule{{Tool: "orders.*", MaxCalls: 10}}}}
	set, err := registry.Set(context.Background(), grant)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(set.Tools()), set.Tools()[0].FullName())
	// Output: 1 orders.lookup
}
