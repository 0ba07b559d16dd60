// Package watch tests watches of sandboxes on real engines.
package watch

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/admin"
	"github.com/workcell-dev/workcell/session/record"
)

var must = checktest.Must

const image = "workcell/debian:12" // built by `make images`

// watcher is a watch whose events are consumed one by one.
type watcher struct {
	t      *testing.T
	events chan admin.Event
}

func watch(t *testing.T, m *session.Manager, filter admin.WatchFilter) *watcher {
	w := &watcher{t, make(chan admin.Event)}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		for e, err := range admin.Watch(ctx, m, filter) {
			if err != nil {
				ended <- err
				return
			}
			select {
			case w.events <- e:
			case <-ctx.Done():
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the watch ended with %v", err)
		}
	})
	return w
}

// next waits for the next event of a type and returns it. Other events of the same sandbox may come first, because a
// sandbox passes intermediate states while it is created or removed.
func (w *watcher) next(what admin.EventType, id string) admin.Event {
	w.t.Helper()
	for {
		e := w.take()
		if e.Type == what && e.Info.ID == id {
			return e
		}
		if id != "" && e.Info.ID != id || e.Type == admin.EventPresent {
			w.t.Fatalf("%s of %q while waiting for %s of %q", e.Type, e.Info.ID, what, id)
		}
	}
}

// take returns the next event.
func (w *watcher) take() admin.Event {
	w.t.Helper()
	select {
	case e := <-w.events:
		return e
	case <-time.After(2 * time.Minute):
		w.t.Fatal("no event")
		return admin.Event{}
	}
}

// ready waits until a sandbox is ready for commands.
func (w *watcher) ready(what admin.EventType, id string) {
	w.t.Helper()
	for e := w.next(what, id); e.Info.State != session.StateReady; {
		e = w.next(admin.EventChanged, id)
	}
}

func open(t *testing.T, m *session.Manager, user string) *session.Session {
	t.Helper()
	s, _, err := m.Open(t.Context(), session.UserKey(user), session.Request{Image: image})
	must(t, err)
	return s
}

// TestWatch: a manager gets events for the sandboxes of another manager with the same instance: existing, new, and
// removed sandboxes, and sandboxes ended from outside.
func TestWatch(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		b, o := enginetest.Driver(t, engine), &session.Options{Instance: "watch-" + record.NewID()}
		m := enginetest.Manager(t, b, o)
		other, err := session.NewManager(b, o)
		must(t, err)
		t.Cleanup(func() { must(t, other.Close(context.Background())) })
		first := open(t, m, "first")
		w := watch(t, other, admin.WatchFilter{})
		w.next(admin.EventPresent, first.ID())
		second := open(t, m, "second")
		alone := watch(t, other, admin.WatchFilter{ID: second.ID()})
		alone.next(admin.EventPresent, second.ID())
		w.ready(admin.EventAdded, second.ID())
		must(t, first.Close(t.Context()))
		w.next(admin.EventRemoved, first.ID())
		must(t, b.Remove(t.Context(), second.Info().EngineID, backend.RemoveOptions{Volumes: true}))
		w.next(admin.EventRemoved, second.ID())
		alone.next(admin.EventRemoved, second.ID())
	})
}

// TestWatchEnds: leaving the loop, closing the manager, and an unavailable engine end a watch.
func TestWatchEnds(t *testing.T) {
	enginetest.On(t, func(t *testing.T, engine string) {
		b, o := enginetest.Driver(t, engine), &session.Options{Instance: "watch-" + record.NewID()}
		m := enginetest.Manager(t, b, o)
		open(t, m, "u")
		for e, err := range admin.Watch(t.Context(), m, admin.WatchFilter{}) {
			if err != nil || e.Type != admin.EventPresent {
				t.Errorf("%+v, %v", e, err)
			}
			break
		}
		other, err := session.NewManager(b, o)
		must(t, err)
		for _, err := range admin.Watch(t.Context(), other, admin.WatchFilter{}) {
			if err == nil {
				must(t, other.Close(context.Background()))
			} else if !errors.Is(err, backend.ErrClosed) {
				t.Errorf("a manager that closed: %v", err)
			}
		}
	})
}

// TestWatchGap: a watch continues after a failed check, and reports possibly missed changes.
func TestWatchGap(t *testing.T) {
	t.Parallel()
	b, err := memory.New(nil)
	must(t, err)
	m := enginetest.Manager(t, b, &session.Options{})
	s := open(t, m, "lab")
	var away atomic.Bool
	b.Fault(func(_ context.Context, c memory.Call) error {
		if c.Op == memory.OpList && away.CompareAndSwap(true, false) {
			return backend.ErrUnavailable
		}
		return nil
	})
	var types []admin.EventType
	for e, err := range admin.Watch(t.Context(), m, admin.WatchFilter{}) {
		must(t, err)
		types = append(types, e.Type)
		if e.Type == admin.EventRemoved {
			break
		}
		if e.Type == admin.EventPresent {
			must(t, s.Close(t.Context()))
			away.Store(true)
		}
	}
	want := []admin.EventType{admin.EventPresent, admin.EventGap, admin.EventRemoved}
	if !slices.Equal(types, want) {
		t.Errorf("events %v, want %v", types, want)
	}
}
