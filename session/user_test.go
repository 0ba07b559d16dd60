//go:build linux

package session_test

import (
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// FuzzUserScope: whatever a person is called, the key is valid unless it is too long, has the name again, and is nobody else's.
func FuzzUserScope(f *testing.F) {
	for _, name := range []string{"alice", "alice@example.com", "a_b", "_5f", "-x", ".", "Jürgen", "a:b", "\x00", "_", "__", "a_5fb"} {
		f.Add(name, name+"_")
	}
	f.Fuzz(func(t *testing.T, name, other string) {
		key := record.UserScope(name).Key("user")
		if err := key.Validate(); err != nil {
			if name != "" && len(key.ID) <= 128 {
				t.Fatalf("%q: %v", name, err)
			}
			return
		}
		if got := key.User(); got != name {
			t.Errorf("%q became %q", name, got)
		}
		if name != other && record.UserScope(other) == record.UserScope(name) {
			t.Errorf("%q and %q have the same scope", name, other)
		}
	})
}

// TestUserKeys: a person's sandbox is not one that was given the person's name, and only it is the person's.
func TestUserKeys(t *testing.T) {
	t.Parallel()
	own, named := record.UserScope("alice").Key("user"), session.UserKey("alice")
	if own == named || own.User() != "alice" || named.User() != "" || session.WorkflowKey("alice", "user").User() != "" {
		t.Errorf("%s is %q's, %s is %q's", own, own.User(), named, named.User())
	}
	if err := record.UserScope("").Key("user").Validate(); err == nil {
		t.Error("nobody has a sandbox")
	}
	if err := record.UserScope(strings.Repeat("x", 129)).Key("user").Validate(); err == nil {
		t.Error("a name that is too long was taken")
	}
	if got := session.UserFromContext(session.WithUser(t.Context(), "bob")); got != "bob" {
		t.Errorf("the user is %q", got)
	}
}

// TestReasons: a record says why its sandbox is not ready any more, and no longer when it is again.
func TestReasons(t *testing.T) {
	t.Parallel()
	store := record.NewMemoryStore()
	m := newManager(t, newEngine(t), &session.Options{ReapEvery: -1, IdleTimeout: 10 * time.Minute, Store: store})
	clock := newClock(m)
	reason := func(s *session.Session) string {
		t.Helper()
		rec, err := store.Get(t.Context(), s.ID())
		must(t, err)
		return rec.Reason
	}
	want := func(s *session.Session, reasons string) {
		t.Helper()
		if got := reason(s); got != reasons {
			t.Errorf("%s: %q, want %q", s.Key(), got, reasons)
		}
	}
	ready := mustOpen(t, m, session.WorkflowKey("run_1", "ready"))
	want(ready, "")
	must(t, ready.Close(t.Context()))
	want(ready, "removed")
	ended := mustOpen(t, m, session.WorkflowKey("run_1", "ended"))
	must(t, m.CloseScope(t.Context(), ended.Key().Scope()))
	want(ended, "run ended")
	idle := mustOpen(t, m, record.UserScope("alice").Key("user"))
	clock.add(11 * time.Minute)
	m.Reap(t.Context())
	want(idle, "idle")
	again := mustOpen(t, m, record.UserScope("alice").Key("user"))
	want(again, "")
}
