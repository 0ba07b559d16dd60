package admin

import (
	"context"
	"iter"
	"time"

	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/internal/custody"
	"github.com/workcell-dev/workcell/session/internal/owner"
	"github.com/workcell-dev/workcell/session/record"
)

// lookPause is the polling interval of a watch.
const lookPause = time.Second

// EventType is the type of a change.
type EventType string

// Event types.
const (
	EventPresent EventType = "present" // the sandbox existed when the watch began
	EventAdded   EventType = "added"
	EventChanged EventType = "changed" // State, Reason, IdlePolicy, or EngineID changed
	EventRemoved EventType = "removed"
	// EventGap reports a time without access to the engine or the store. The next events report the differences.
	// Sandboxes created and removed during the gap are not reported.
	EventGap EventType = "gap"
)

// Event is an event of Watch.
type Event struct {
	Type  EventType
	Time  time.Time // when Watch noticed the change
	Since time.Time // only for EventGap: time of the last successful poll
	// Info is the sandbox's description. For EventRemoved, it is the last known description, with StateClosed or StateLost
	// and the Reason, if known. For EventGap, it is zero.
	Info session.Info
}

// WatchFilter selects sandboxes. An empty field selects all.
type WatchFilter struct {
	ID   string
	Run  string
	User string // owner of the sandboxes, Key.User
}

func (f WatchFilter) matches(i session.Info) bool {
	return (f.ID == "" || f.ID == i.ID) && (f.Run == "" || f.Run == i.Run) && (f.User == "" || f.User == i.Key.User())
}

// Watch reports the sandboxes of all processes of this instance: first the existing sandboxes, then each change. It
// polls every second. A sandbox with a life of less than a second may be missed, and several changes within a second
// are one event. The sequence ends when the loop breaks or with an error: ctx's error, ErrClosed if the manager is
// closed, or the error of the first poll. Later poll errors cause EventGap.
func Watch(ctx context.Context, m *session.Manager, filter WatchFilter) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		ops := custody.Of(m)
		defer ops.AfterClose(cancel)()
		w := &watch{m: m, records: ops.Store(), filter: filter}
		if err := w.run(ctx, yield); err != nil {
			yield(Event{}, ops.Error("Watch", err))
		}
	}
}

// watch is the state of one Watch call.
type watch struct {
	m       *session.Manager
	records record.Store
	filter  WatchFilter
	known   map[string]session.Info
	looked  time.Time // time of the last successful poll
	failed  bool      // the latest poll failed
}

// run polls and yields events. It returns nil if the consumer stops, or the error at the end of the watch.
func (w *watch) run(ctx context.Context, yield func(Event, error) bool) error {
	for {
		list, err := w.m.List(context.WithValue(ctx, custody.Strict{}, true))
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil && w.known == nil:
			return err
		case err != nil:
			w.failed = true
		case !w.tell(ctx, list, yield):
			return nil
		}
		bound.Pause(ctx, lookPause)
	}
}

// tell yields the differences from the last poll. It reports whether the consumer wants more events.
func (w *watch) tell(ctx context.Context, list []session.Info, yield func(Event, error) bool) bool {
	now := time.Now()
	if w.failed && !yield(Event{Type: EventGap, Time: now, Since: w.looked}, nil) {
		return false
	}
	w.looked, w.failed = now, false
	before := w.known
	w.known = map[string]session.Info{}
	for _, info := range list {
		if !w.filter.matches(info) {
			continue
		}
		w.known[info.ID] = info
		old, there := before[info.ID]
		what := EventChanged
		switch {
		case before == nil:
			what = EventPresent
		case !there:
			what = EventAdded
		case old.State == info.State && old.Reason == info.Reason && old.IdlePolicy == info.IdlePolicy &&
			old.EngineID == info.EngineID:
			continue
		}
		if !yield(Event{Type: what, Time: now, Info: info}, nil) {
			return false
		}
	}
	for id, info := range before {
		if _, there := w.known[id]; !there && !yield(Event{Type: EventRemoved, Time: now, Info: w.ended(ctx, info)}, nil) {
			return false
		}
	}
	return true
}

// ended returns the last known description of a removed sandbox.
func (w *watch) ended(ctx context.Context, info session.Info) session.Info {
	info.State = session.StateClosed
	if rec, err := w.records.Get(ctx, info.ID); err == nil {
		if info.Reason = rec.Reason; rec.Reason == string(owner.EngineLost) {
			info.State = session.StateLost
		}
	}
	return info
}
