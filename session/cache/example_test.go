package cache_test

import (
	"fmt"
	"log"
	"os"

	"github.com/workcell-dev/workcell/session/cache"
)

// A store has a directory for each known cache, and for caches that you define.
func Example() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	store, err := cache.Open(dir, cache.Own("models", "MODEL_DIR"))
	if err != nil {
		log.Fatal(err)
	}
	info, err := store.Info("models")
	fmt.Println(info.Name, info.Files, err)
	// Output: models 0 <nil>
}
