// Package storetest contains the tests for every record.Store.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session/record"
)

// Run runs the tests. open must return a new, empty store for each call and clean it up with t.Cleanup.
func Run(t *testing.T, open func(t *testing.T) record.Store) {
	for _, test := range []struct {
		name string
		run  func(*testing.T, record.Store)
	}{
		{"RoundTrip", roundTrip},
		{"InsertTwice", insertTwice},
		{"OneLiveRecordPerKey", oneLivePerKey},
		{"Touch", touch},
		{"Owners", owners},
		{"Take", take},
		{"List", list},
		{"Delete", deleteRecord},
		{"OddText", oddText},
		{"Cancelled", cancelled},
		{"OneWins", oneWins},
		{"ConcurrentUse", concurrentUse},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, open(t))
		})
	}
}

// base returns a time with microsecond precision, which stores must keep.
func base() time.Time { return time.Date(2026, 3, 4, 5, 6, 7, 891_011_000, time.UTC) }

// newRecord returns a record unlike other records in every field.
func newRecord(n int) record.Record {
	return record.Record{
		ID: fmt.Sprintf("sbx_%026d", n), Key: record.WorkflowKey(fmt.Sprintf("run_%d", n), "default"),
		Engine: "engine", EngineID: fmt.Sprintf("engine-%d", n), Owner: fmt.Sprintf("owner%d", n), Request: fmt.Sprintf(`{"n":%d}`, n), State: record.Ready,
		Created: base().Add(time.Duration(n) * time.Second), LastUsed: base().Add(time.Duration(n) * time.Minute),
		Expires: base().Add(time.Duration(n) * time.Hour), Idle: time.Duration(n) * time.Minute,
		IdlePolicy: record.IdleStop, Retention: time.Duration(n) * time.Second, KeepWorkspace: n%2 == 1,
		User: fmt.Sprintf("%d:%d", n, n), WorkspaceBytes: int64(n) << 20, Workspace: backend.WorkspaceSized,
	}
}

func mustInsert(t *testing.T, s record.Store, recs ...record.Record) {
	t.Helper()
	for _, rec := range recs {
		if err := s.Insert(t.Context(), rec); err != nil {
			t.Fatalf("Insert(%s): %v", rec.ID, err)
		}
	}
}

func wantRecord(t *testing.T, s record.Store, want record.Record) {
	t.Helper()
	got, err := s.Get(t.Context(), want.ID)
	if err != nil {
		t.Fatalf("Get(%s): %v", want.ID, err)
	}
	if diff := cmp.Diff(want, got, sameInstant()); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
}

// sameInstant compares times with microsecond precision in any time zone. A zero time equals only a zero time.
func sameInstant() cmp.Option {
	return cmp.Comparer(func(a, b time.Time) bool {
		if a.IsZero() || b.IsZero() {
			return a.IsZero() == b.IsZero()
		}
		return a.Truncate(time.Microsecond).Equal(b.Truncate(time.Microsecond))
	})
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func roundTrip(t *testing.T, s record.Store) {
	full, empty := newRecord(1), record.Record{ID: newRecord(2).ID, Key: newRecord(2).Key, State: record.Closed}
	mustInsert(t, s, full, empty)
	wantRecord(t, s, full)
	wantRecord(t, s, empty)
	full.State, full.EngineID, full.Owner, full.Expires, full.Retention, full.Idle = record.Removing, "other", "", time.Time{}, 0, -time.Second
	full.Ended = true
	if err := s.Update(t.Context(), full); err != nil {
		t.Fatalf("Update: %v", err)
	}
	wantRecord(t, s, full)
	wantRecord(t, s, empty)
	_, err := s.Get(t.Context(), newRecord(3).ID)
	wantError(t, "Get of an unknown id", err, backend.ErrNotFound)
}

func insertTwice(t *testing.T, s record.Store) {
	rec := newRecord(1)
	mustInsert(t, s, rec)
	again := newRecord(2)
	again.ID = rec.ID
	wantError(t, "Insert of a known id", s.Insert(t.Context(), again), backend.ErrExists)
	wantRecord(t, s, rec)
	wantError(t, "Update of an unknown id", s.Update(t.Context(), newRecord(3)), backend.ErrNotFound)
}

func oneLivePerKey(t *testing.T, s record.Store) {
	first, second := newRecord(1), newRecord(2)
	second.Key = first.Key
	first.State = record.Creating
	mustInsert(t, s, first)
	wantError(t, "second live record of a key", s.Insert(t.Context(), second), backend.ErrExists)
	_, err := s.Get(t.Context(), second.ID)
	wantError(t, "Get of a refused record", err, backend.ErrNotFound)
	for _, state := range []record.State{record.Removing, record.Closed} {
		first.State = state
		if err := s.Update(t.Context(), first); err != nil {
			t.Fatalf("Update to %s: %v", state, err)
		}
		if err := s.Insert(t.Context(), second); err != nil {
			t.Fatalf("Insert while the first is %s: %v", state, err)
		}
		first.State = record.Ready
		wantError(t, "Update to a second live record", s.Update(t.Context(), first), backend.ErrExists)
		if err := s.Delete(t.Context(), second.ID); err != nil {
			t.Fatalf("Delete: %v", err)
		}
		if state == record.Removing {
			if err := s.Update(t.Context(), first); err != nil {
				t.Fatalf("Update after the other is gone: %v", err)
			}
			continue
		}
		late := s.Update(t.Context(), first) // from a process that has not noticed the end
		wantError(t, "Update of an ended record to "+string(first.State), late, backend.ErrExists)
		if got, err := s.Get(t.Context(), first.ID); err != nil || got.State != state {
			t.Errorf("after a late update: %+v, %v", got, err)
		}
		if err := s.Delete(t.Context(), first.ID); err != nil {
			t.Fatalf("Delete: %v", err)
		}
		mustInsert(t, s, first)
	}
	dead, elsewhere := newRecord(3), newRecord(4)
	dead.Key, dead.State = first.Key, record.Closed
	elsewhere.Key, elsewhere.Engine = first.Key, "another"
	mustInsert(t, s, dead, elsewhere) // dead records may share a key, and each engine may have one live record
	wantRecord(t, s, elsewhere)
	elsewhere.Engine = first.Engine
	wantError(t, "Update to a second live record", s.Update(t.Context(), elsewhere), backend.ErrExists)
}

func owners(t *testing.T, s record.Store) {
	lives := func(owner string) bool {
		t.Helper()
		ok, err := s.Lives(t.Context(), owner)
		if err != nil {
			t.Fatalf("Lives: %v", err)
		}
		return ok
	}
	a, leave, err := s.Join(t.Context())
	if err != nil {
		t.Fatalf("Join: %v", err)
	}
	b, leaveToo, err := s.Join(t.Context())
	if err != nil || a == b {
		t.Fatalf("Join: %q after %q, %v", b, a, err)
	}
	if !lives(a) || !lives(b) || lives("") || lives("nobodythere") {
		t.Error("not those who joined live")
	}
	for range 2 {
		if err := leave(); err != nil {
			t.Errorf("leave: %v", err)
		}
	}
	if lives(a) || !lives(b) {
		t.Error("not the one who left is dead")
	}
	if err := leaveToo(); err != nil {
		t.Errorf("leave: %v", err)
	}
}

func take(t *testing.T, s record.Store) {
	rec := newRecord(1)
	mustInsert(t, s, rec)
	_, err := s.Take(t.Context(), rec.ID, "somebody", "me")
	wantError(t, "Take from the wrong owner", err, backend.ErrExists)
	wantRecord(t, s, rec)
	_, err = s.Take(t.Context(), newRecord(2).ID, rec.Owner, "me")
	wantError(t, "Take of an unknown record", err, backend.ErrNotFound)
	got, err := s.Take(t.Context(), rec.ID, rec.Owner, "me")
	if err != nil {
		t.Fatalf("Take: %v", err)
	}
	rec.Owner = "me"
	if diff := cmp.Diff(rec, got, sameInstant()); diff != "" {
		t.Errorf("what was taken (-want +got):\n%s", diff)
	}
	wantRecord(t, s, rec)
}

// oneWins verifies that only one of many concurrent calls takes a record or inserts a key.
func oneWins(t *testing.T, s record.Store) {
	rec := newRecord(100)
	rec.Owner = ""
	mustInsert(t, s, rec)
	for name, try := range map[string]func(i int) error{
		"Take": func(i int) error {
			_, err := s.Take(t.Context(), rec.ID, "", fmt.Sprintf("owner%d", i))
			return err
		},
		"Insert": func(i int) error {
			rec := newRecord(i)
			rec.Key, rec.State = newRecord(0).Key, record.Creating
			return s.Insert(t.Context(), rec)
		},
	} {
		errs := make([]error, 16)
		var wg sync.WaitGroup
		for i := range errs {
			wg.Go(func() { errs[i] = try(i) })
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else if !errors.Is(err, backend.ErrExists) {
				t.Errorf("%s: %v, want %v", name, err, backend.ErrExists)
			}
		}
		if won != 1 {
			t.Errorf("%s: %d succeeded, want 1", name, won)
		}
	}
}

func touch(t *testing.T, s record.Store) {
	rec, dead := newRecord(1), newRecord(2)
	dead.State = record.Closed
	mustInsert(t, s, rec, dead)
	rec.LastUsed, rec.Expires = base().Add(48*time.Hour), time.Time{}
	if err := s.Touch(t.Context(), rec.ID, rec.LastUsed, rec.Expires); err != nil {
		t.Fatalf("Touch: %v", err)
	}
	if err := s.Touch(t.Context(), rec.ID, rec.LastUsed.Add(-time.Minute), base().Add(time.Hour)); err != nil {
		t.Fatalf("a late Touch: %v", err)
	}
	wantRecord(t, s, rec)
	wantError(t, "Touch of a closed record", s.Touch(t.Context(), dead.ID, rec.LastUsed, rec.Expires), backend.ErrNotFound)
	wantRecord(t, s, dead)
	wantError(t, "Touch of an unknown id", s.Touch(t.Context(), newRecord(3).ID, rec.LastUsed, rec.Expires), backend.ErrNotFound)
}

func list(t *testing.T, s record.Store) {
	recs := []record.Record{newRecord(3), newRecord(1), newRecord(2), newRecord(4)}
	recs[0].State, recs[3].State = record.Closed, record.Removing
	recs[3].Created = recs[0].Created // so that the order depends on the id
	mustInsert(t, s, recs...)
	for _, test := range []struct {
		states []record.State
		want   []record.Record
	}{
		{nil, []record.Record{recs[1], recs[2], recs[0], recs[3]}},
		{[]record.State{record.Ready}, []record.Record{recs[1], recs[2]}},
		{[]record.State{record.Removing, record.Closed}, []record.Record{recs[0], recs[3]}},
		{[]record.State{record.Creating}, nil},
	} {
		got, err := s.List(t.Context(), test.states...)
		if err != nil {
			t.Fatalf("List(%v): %v", test.states, err)
		}
		if diff := cmp.Diff(test.want, got, sameInstant()); diff != "" {
			t.Errorf("List(%v) (-want +got):\n%s", test.states, diff)
		}
	}
}

func deleteRecord(t *testing.T, s record.Store) {
	rec := newRecord(1)
	mustInsert(t, s, rec)
	for range 2 {
		if err := s.Delete(t.Context(), rec.ID); err != nil {
			t.Fatalf("Delete: %v", err)
		}
	}
	_, err := s.Get(t.Context(), rec.ID)
	wantError(t, "Get of a deleted record", err, backend.ErrNotFound)
	mustInsert(t, s, rec) // neither the id nor the key is in use
}

func oddText(t *testing.T, s record.Store) {
	rec := newRecord(1)
	rec.EngineID, rec.Request = "quote ' and \" and ; -- %s", "line\nbreak \u00fc"
	mustInsert(t, s, rec)
	wantRecord(t, s, rec)
}

func cancelled(t *testing.T, s record.Store) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	wantError(t, "Insert", s.Insert(ctx, newRecord(1)), context.Canceled)
	_, err := s.Get(t.Context(), newRecord(1).ID)
	wantError(t, "Get after a cancelled Insert", err, backend.ErrNotFound)
	_, err = s.Get(ctx, newRecord(1).ID)
	wantError(t, "Get", err, context.Canceled)
	_, err = s.List(ctx)
	wantError(t, "List", err, context.Canceled)
	wantError(t, "Update", s.Update(ctx, newRecord(1)), context.Canceled)
	wantError(t, "Touch", s.Touch(ctx, newRecord(1).ID, base(), base()), context.Canceled)
	wantError(t, "Delete", s.Delete(ctx, newRecord(1).ID), context.Canceled)
	_, err = s.Take(ctx, newRecord(1).ID, "", "me")
	wantError(t, "Take", err, context.Canceled)
	_, _, err = s.Join(ctx)
	wantError(t, "Join", err, context.Canceled)
	_, err = s.Lives(ctx, "nobodythere")
	wantError(t, "Lives", err, context.Canceled)
}

func concurrentUse(t *testing.T, s record.Store) {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			rec := newRecord(i)
			for range 5 {
				err := errors.Join(s.Insert(t.Context(), rec), s.Touch(t.Context(), rec.ID, base(), base()), s.Update(t.Context(), rec))
				_, listErr := s.List(t.Context())
				if err = errors.Join(err, listErr, s.Delete(t.Context(), rec.ID)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if left, err := s.List(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("%d records left, %v", len(left), err)
	}
}
