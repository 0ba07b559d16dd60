package session

import (
	"context"
	"iter"
	"sync"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session/internal/owner"
)

// Pauses of a watch.
const (
	lookAgain   = 5 * time.Second // for what only records say, or what an event was lost of
	lookAlone   = time.Second     // at an engine that reports nothing
	settleLooks = 50 * time.Millisecond
)

// EventType is what happened to a sandbox.
type EventType string

// Event types.
const (
	EventPresent EventType = "present" // it was there when the watch began
	EventAdded   EventType = "added"
	EventChanged EventType = "changed" // its State, Reason, IdlePolicy or EngineID
	EventRemoved EventType = "removed"
	// EventGap: the engine, or a store that tells of changes, could not be heard for a while. What is different since then is told as usual; what came and went
	// in that time never is.
	EventGap EventType = "gap"
)

// Event is what Watch tells.
type Event struct {
	Type  EventType
	Time  time.Time // when it was noticed
	Since time.Time // of EventGap: when it was last heard
	// Info is the sandbox; that of a removed one is the last there was, with StateClosed or StateLost and the Reason if it is
	// known. It is zero for EventGap.
	Info Info
}

// WatchFilter chooses sandboxes; a field that is empty chooses all.
type WatchFilter struct {
	ID   string
	Run  string
	User string // the person whose they are, Key.User
}

func (f WatchFilter) matches(i Info) bool {
	return (f.ID == "" || f.ID == i.ID) && (f.Run == "" || f.Run == i.Run) && (f.User == "" || f.User == i.Key.User())
}

// Watch tells what becomes of the sandboxes of this instance, those of other processes too: first those that are there, then each
// change, which the engine reports where it can, and which is looked for every second where not. A consumer that is slow gets the
// latest of several changes of a sandbox, and misses one that came and went. The sequence ends when the loop does, or
// with an error: that of ctx, backend.ErrClosed once the manager is closed, or, at the beginning only, that of an engine which
// cannot be asked. An engine that goes away later is waited for.
func (m *Manager) Watch(ctx context.Context, filter WatchFilter) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		stop := context.AfterFunc(m.ctx, func() { cancel(errManagerClosed) })
		defer stop()
		w := &watch{m: m, filter: filter, news: make(chan struct{}, 1), pause: lookAlone}
		var listening sync.WaitGroup
		defer listening.Wait()
		defer cancel(nil)
		if b, ok := optional[backend.Watcher](m.b); ok {
			w.pause, w.heard = lookAgain, true
			listening.Go(func() {
				w.listen(ctx, &w.engine, "the engine", func(ctx context.Context, changed func()) error {
					return b.Watch(ctx, backend.Filter{Instance: m.opts.Instance}, changed)
				})
			})
		}
		if s, ok := m.store.(StoreWatcher); ok {
			listening.Go(func() { w.listen(ctx, &w.store, "the store", s.Watch) })
		}
		if err := w.run(ctx, yield); err != nil {
			yield(Event{}, wrapError("Watch", m.driver, "", err))
		}
	}
}

// watch is one watch.
type watch struct {
	m      *Manager
	filter WatchFilter
	news   chan struct{} // holds one when there is something to look at
	pause  time.Duration // between looks when there are no news
	heard  bool          // the engine reports changes
	known  map[string]Info
	looked time.Time // when the engine was last looked at
	failed bool      // the latest look failed

	mu            sync.Mutex // guards the fields below
	engine, store source
}

// source is who reports changes.
type source struct {
	lost time.Time // when it was last heard; zero while it is
	gap  time.Time // what lost was before it was heard again; zero when that was told
}

// listen has a source report changes, over broken connections too.
func (w *watch) listen(ctx context.Context, s *source, name string, watch func(context.Context, func()) error) {
	for {
		err := watch(ctx, func() { w.changed(s) })
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		if s.lost.IsZero() {
			s.lost = w.m.now()
			w.m.log.WarnContext(ctx, name+" does not report sandbox changes for now", "error", err)
		}
		w.mu.Unlock()
		if !pause(ctx, lookAlone) {
			return
		}
	}
}

// changed is called by a source.
func (w *watch) changed(s *source) {
	w.mu.Lock()
	if !s.lost.IsZero() {
		s.gap, s.lost = s.lost, time.Time{}
	}
	w.mu.Unlock()
	select {
	case w.news <- struct{}{}:
	default: // a look is due already
	}
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
		timer := time.NewTimer(w.pause)
		select {
		case <-w.news:
			timer.Stop()
			pause(ctx, settleLooks) // the changes of one step come together
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// tell tells what is different, and reports whether the consumer wants more.
func (w *watch) tell(ctx context.Context, list []Info, yield func(Event, error) bool) bool {
	now := w.m.now()
	if since := w.missed(); !since.IsZero() && !yield(Event{Type: EventGap, Time: now, Since: since}, nil) {
		return false
	}
	w.looked, w.failed = now, false
	before := w.known
	w.known = map[string]Info{}
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

// missed returns since when changes may have been missed, once; zero is never.
func (w *watch) missed() time.Time {
	if !w.heard && w.failed {
		return w.looked
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	since := w.engine.gap
	if since.IsZero() || !w.store.gap.IsZero() && w.store.gap.Before(since) {
		since = w.store.gap
	}
	w.engine.gap, w.store.gap = time.Time{}, time.Time{}
	return since
}

// ended returns what is known of a sandbox that is gone.
func (w *watch) ended(ctx context.Context, info Info) Info {
	info.State = StateClosed
	if rec, err := w.m.store.Get(ctx, info.ID); err == nil {
		if info.Reason = rec.Reason; rec.Reason == string(owner.EngineLost) {
			info.State = StateLost
		}
	}
	return info
}
