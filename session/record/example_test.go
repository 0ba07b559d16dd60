package record_test

import (
	"fmt"

	"github.com/workcell-dev/workcell/session/record"
)

// A key names a sandbox. All keys of a run have the same scope.
func ExampleKey() {
	key := record.WorkflowKey("build-1", record.DefaultName)
	again, err := record.ParseKey(key.String())
	fmt.Println(key, err, again == key, again.Scope() == key.Scope())
	// Output: workflow:build-1:default <nil> true true
}
