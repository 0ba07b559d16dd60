package declare_test

import (
	"fmt"

	"github.com/workcell-dev/workcell/gateway/hosttools/declare"
)

// Index returns the line that describes a tool to a model.
func ExampleIndex() {
	number := map[string]any{"type": "string"}
	input := map[string]any{"type": "object", "properties": map[string]any{"number": number}, "required": []any{"number"}}
	fmt.Println(declare.Index(declare.Tool{Server: "orders", Name: "lookup", Description: "Find an order.", Input: input}))
	// Output: orders.lookup(number) - Find an order.
}
