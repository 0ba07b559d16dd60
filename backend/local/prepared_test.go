//go:build linux

package local_test

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/local"
)

// TestPreparedGroup: who begins to use a state directory, and so removes the control groups of dead processes, leaves
// those alone which others are preparing.
func TestPreparedGroup(t *testing.T) {
	t.Parallel()
	dir := stateDir(t)
	var mu sync.Mutex
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(writerFunc(func(p []byte) (int, error) {
		mu.Lock()
		defer mu.Unlock()
		return log.Write(p)
	}), nil))
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 4 {
				b, err := local.New(t.Context(), &local.Options{StateDir: dir, Logger: logger})
				if err != nil {
					t.Error(err)
					return
				}
				spec := newSpec()
				info, err := b.Create(t.Context(), spec)
				if err != nil {
					t.Error(err)
				} else {
					backendtest.Remove(t, b, info.ID)
				}
				if err := b.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if log.Len() > 0 {
		t.Errorf("logged:\n%s", &log)
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
