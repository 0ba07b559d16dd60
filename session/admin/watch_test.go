package admin_test

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/admin"
	"github.com/workcell-dev/workcell/session/record"
)

// failing is a store whose next List fails if fails is true.
type failing struct {
	record.Store
	fails atomic.Bool
}

func (f *failing) List(ctx context.Context, states ...record.State) ([]record.Record, error) {
	if f.fails.Swap(false) {
		return nil, backend.ErrUnavailable
	}
	return f.Store.List(ctx, states...)
}

// TestWatchWithoutStore verifies that a failure of the store is a gap, not a change of a sandbox.
func TestWatchWithoutStore(t *testing.T) {
	t.Parallel()
	b, err := memory.New(nil)
	checktest.Must(t, err)
	store := &failing{Store: record.NewMemoryStore()}
	opts := &session.Options{Instance: "i", Store: store, ReapEvery: -1}
	m, err := session.NewManager(b, opts)
	checktest.Must(t, err)
	_, _, err = m.Open(t.Context(), session.UserKey("lab"), session.Request{Image: "x:1"})
	checktest.Must(t, errors.Join(err, m.Detach(t.Context())))
	m, err = session.NewManager(b, opts)
	checktest.Must(t, err)
	t.Cleanup(func() { checktest.Must(t, errors.Join(m.Close(context.Background()), b.Close())) })
	var got []admin.EventType
	for e, err := range admin.Watch(t.Context(), m, admin.WatchFilter{}) {
		checktest.Must(t, err)
		if got = append(got, e.Type); len(got) == 2 {
			break
		}
		store.fails.Store(true)
	}
	if want := []admin.EventType{admin.EventPresent, admin.EventGap}; !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
