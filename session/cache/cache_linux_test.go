package cache

import (
	"os"
	"sync"
	"testing"
)

// TestAlwaysThere verifies that the cache's directory exists at every moment of a replacement, even if the process
// dies.
func TestAlwaysThere(t *testing.T) {
	t.Parallel()
	s, err := Open(t.TempDir())
	must(t, err)
	must(t, s.Remove("pip"))
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				if _, err := os.Stat(s.files("pip")); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	for range 500 {
		must(t, s.Remove("pip"))
	}
	close(done)
	wg.Wait()
}
