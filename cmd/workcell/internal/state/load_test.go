//go:build !windows

package state

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/postgres/pgtest"
)

// TestServerKilledUnderLoad verifies that all operations on records and runs take effect exactly once if the server is
// killed and restarted under load. There are many more callers than connections.
func TestServerKilledUnderLoad(t *testing.T) {
	t.Parallel()
	s := pgtest.NewServer(t)
	place := Place{URL: s.URL + "&pool_max_conns=2"}
	records, err := place.OpenRecords(t.Context())
	must(t, err)
	t.Cleanup(func() { must(t, records.Close()) })
	journal, err := place.OpenJournal(t.Context(), true)
	must(t, err)
	t.Cleanup(func() { must(t, journal.Close()) })
	var done atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for caller := range 24 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := useAll(t, records, journal, fmt.Sprintf("%d.%d", caller, n)); err != nil {
					t.Errorf("caller %d, round %d: %v", caller, n, err)
					return
				}
				done.Add(1)
			}
		})
	}
	for kills := 0; kills < 3 && !t.Failed(); kills++ {
		for from := done.Load(); done.Load() < from+30 && !t.Failed(); {
			time.Sleep(time.Millisecond)
		}
		s.Kill()
		s.Start()
	}
	close(stop)
	wg.Wait()
	t.Logf("%d rounds", done.Load())
}
