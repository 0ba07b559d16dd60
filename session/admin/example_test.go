package admin_test

import (
	"context"
	"fmt"
	"log"

	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/admin"
	"github.com/workcell-dev/workcell/session/record"
)

// RemoveScope removes the sandboxes of a user, even if another process opened them.
func ExampleRemoveScope() {
	ctx := context.Background()
	b, err := memory.New(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer b.Close()
	m, err := session.NewManager(b, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer m.Close(ctx)
	removed, err := admin.RemoveScope(ctx, m, record.UserScope("ada"))
	fmt.Println(len(removed), err)
	// Output: 0 <nil>
}
