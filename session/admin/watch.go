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

// lookPause is the time between two looks of a watch.
const lookPause = time.Second

// EventType is what happened to a sandbox.
type EventType string

// Event types.
const (
	EventPresent EventType = "present" // it was there when the watch began
	EventAdded   EventType = "added"
	EventChanged EventType = "changed" // its State, Reason, IdlePolicy or EngineID
	EventRemoved EventType = "removed"
	// EventGap means that the engine or the store could not be reached for a while. The next events report the differences
	// since then. A sandbox that was created and removed in that time is not reported.
	EventGap EventType = "gap"
)

// Event is what Watch tells.
type Event struct {
	Type  EventType
	Time  time.Time // when it was noticed
	Since time.Time // of EventGap: when it was last heard
	// Info is the sandbox; that of a removed one is the last there was, with StateClosed or StateLost and the Reason
	// if it is known. It is zero for EventGap.
	Info session.Info
}

// WatchFilter chooses sandboxes; a field that is empty chooses all.
type WatchFilter struct {
	ID   string
	Run  string
	User string // the person whose they are, Key.User
}

func (f WatchFilter) matches(i session.Info) bool {
	return (f.ID == "" || f.ID == i.ID) && (f.Run == "" || f.Run == i.Run) && (f.User == "" || f.User == i.Key.User())
}

// Watch reports the sandboxes of this instance, of all processes: first the existing sandboxes, then each change.
// It looks every second. A sandbox that exists for less than a second may not be reported, and several changes of a
// sandbox within a second are one event. The sequence ends when the loop does, or with an error: that of ctx, ErrClosed
// once the manager is closed, or, at the beginning only, the error of the first look.
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

// watch is one watch.
type watch struct {
	m       *session.Manager
	records record.Store
	filter  WatchFilter
	known   map[string]session.Info
	looked  time.Time // time of the last successful look
	failed  bool      // the latest look failed
}

// run looks and tells until the consumer has enough, which is nil, or an error ends the watch.
func (w *watch) run(ctx context.Context, yield func(Event, error) bool) error {
	for {
		list, err := w.m.List(ctx)
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

// tell tells what is different, and reports whether the consumer wants more.
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
		case old.State == info.State && old.Reason == info.Reason && old.IdlePolicy == info.IdlePolicy && old.EngineID == info.EngineID:
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

// ended returns what is known of a sandbox that is gone.
func (w *watch) ended(ctx context.Context, info session.Info) session.Info {
	info.State = session.StateClosed
	if rec, err := w.records.Get(ctx, info.ID); err == nil {
		if info.Reason = rec.Reason; rec.Reason == string(owner.EngineLost) {
			info.State = session.StateLost
		}
	}
	return info
}
