package environment_test

import (
	"fmt"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/environment"
	"github.com/workcell-dev/workcell/session/admin"
)

// Reclaim selects environments unused for a week, or larger than 1 GiB together.
func ExampleReclaim() {
	now := time.Now()
	list := []admin.Environment{
		{Environment: backend.Environment{Name: "old"}, LastUsed: now.AddDate(0, -1, 0)},
		{Environment: backend.Environment{Name: "new"}, LastUsed: now},
	}
	for _, e := range environment.Reclaim(list, now, 7*24*time.Hour, 1<<30) {
		fmt.Println(e.Name)
	}
	// Output: old
}
