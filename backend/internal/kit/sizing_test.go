package kit_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"syscall"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/internal/kit"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestSizing verifies that the first result is cached, and that temporary errors are not.
func TestSizing(t *testing.T) {
	t.Parallel()
	for want, result := range map[backend.Enforcement]error{
		backend.WorkspaceWatched: errors.New("mkfs.ext4 not found"), backend.WorkspaceSized: nil,
	} {
		asked, passing := 0, fmt.Errorf("making it: %w", syscall.ENOSPC)
		s := kit.NewSizing(kit.New(kit.Options{Name: "x", Log: slog.New(slog.DiscardHandler)}), func(context.Context) error {
			if asked++; asked == 1 {
				return passing
			}
			return result
		})
		if got, err := s(t.Context()); got != "" || !errors.Is(err, passing) {
			t.Errorf("without room: %q, %v", got, err)
		}
		for range 2 {
			if got, err := s(t.Context()); got != want || err != nil || asked != 2 {
				t.Errorf("%q, %v after %d probes, want %q after 2", got, err, asked, want)
			}
		}
	}
}

// TestSizingWaits verifies that a caller waiting for another caller's probe returns when its own context ends.
func TestSizingWaits(t *testing.T) {
	t.Parallel()
	began, end := make(chan struct{}), make(chan struct{})
	s := kit.NewSizing(kit.New(kit.Options{Name: "x", Log: slog.New(slog.DiscardHandler)}), func(context.Context) error {
		close(began)
		<-end
		return nil
	})
	first := make(chan error)
	go func() {
		_, err := s(context.Background())
		first <- err
	}()
	<-began
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("during a hanging probe: %v, want %v", err, context.Canceled)
	}
	close(end)
	checktest.Must(t, <-first)
	if got, err := s(t.Context()); got != backend.WorkspaceSized || err != nil {
		t.Errorf("afterwards %q, %v", got, err)
	}
}
