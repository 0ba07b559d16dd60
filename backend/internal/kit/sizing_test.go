package kit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
)

// TestSizing: what the machine can do is found out once, what it cannot is looked at again after a while, and a failure
// that may pass is returned and not remembered.
func TestSizing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked, result := 0, error(nil)
		s := kit.NewSizing("x", slog.New(slog.DiscardHandler), func(context.Context) error {
			asked++
			return result
		})
		expect := func(want backend.Enforcement, fails error, times int) {
			t.Helper()
			if got, err := s.Enforcement(t.Context()); got != want || !errors.Is(err, fails) || asked != times {
				t.Errorf("%q, %v after %d probes, want %q, %v after %d", got, err, asked, want, fails, times)
			}
		}
		result = fmt.Errorf("making it: %w", syscall.ENOSPC)
		expect("", syscall.ENOSPC, 1)
		result = backend.ErrUnavailable
		expect("", backend.ErrUnavailable, 2)
		result = errors.New("mkfs.ext4 not found")
		expect(backend.WorkspaceWatched, nil, 3)
		expect(backend.WorkspaceWatched, nil, 3)
		time.Sleep(2 * time.Minute)
		result = syscall.EMFILE
		expect("", syscall.EMFILE, 4)
		result = nil
		expect(backend.WorkspaceSized, nil, 5)
		time.Sleep(24 * time.Hour)
		expect(backend.WorkspaceSized, nil, 5)
	})
}

// TestSizingWaits: who waits for another one's probe waits no longer than its own context.
func TestSizingWaits(t *testing.T) {
	t.Parallel()
	began, end := make(chan struct{}), make(chan struct{})
	s := kit.NewSizing("x", slog.New(slog.DiscardHandler), func(context.Context) error {
		close(began)
		<-end
		return nil
	})
	first := make(chan error)
	go func() {
		_, err := s.Enforcement(context.Background())
		first <- err
	}()
	<-began
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.Enforcement(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("beside a probe that hangs: %v, want %v", err, context.Canceled)
	}
	close(end)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if got, err := s.Enforcement(t.Context()); got != backend.WorkspaceSized || err != nil {
		t.Errorf("afterwards %q, %v", got, err)
	}
}
