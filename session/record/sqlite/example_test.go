package sqlite_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/workcell-dev/workcell/session/record/sqlite"
)

// Processes that open the same file share the records of their sandboxes.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := sqlite.Open(ctx, filepath.Join(dir, "state.db"))
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	list, err := store.List(ctx)
	fmt.Println(len(list), err)
	// Output: 0 <nil>
}
