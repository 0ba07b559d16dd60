//go:build linux

package session_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// TestDefaults verifies that an operator's defaults apply only to fields that the request does not set.
func TestDefaults(t *testing.T) {
	t.Parallel()
	e, runtimes := newEngine(t), []string{}
	e.onCreate = func(_ context.Context, spec backend.Spec) error {
		runtimes = append(runtimes, spec.OCIRuntime) // Open is never called concurrently
		return nil
	}
	m := newManager(t, e, &session.Options{Defaults: session.Defaults{
		Limits:      backend.Limits{PIDs: 40, MemoryBytes: 64 << 20, TmpBytes: 1 << 30, ShmBytes: 1 << 30},
		ExecTimeout: 7 * time.Second, OCIRuntime: "strong",
		Images: map[string]string{"python": "ours:1"},
	}})
	open := func(name string, req session.Request) session.Info {
		t.Helper()
		s := openAs(t, m, session.UserKey(name), req)
		return s.Info()
	}
	got := open("nothing", session.Request{Image: "theirs:1", Language: "python", DefaultImage: true})
	want := backend.Limits{PIDs: 40, MemoryBytes: 64 << 20, TmpBytes: 32 << 20, ShmBytes: 16 << 20} // they fit into memory
	if got.Image != "ours:1" || got.Limits != want || got.ExecTimeout != 7*time.Second {
		t.Errorf("who asks for nothing: %+v", got)
	}
	got = open("own", session.Request{
		Image: "theirs:1", Language: "python", Limits: backend.Limits{PIDs: 90}, ExecTimeout: time.Second, OCIRuntime: "own",
	})
	if got.Image != "theirs:1" || got.Limits.PIDs != 90 || got.Limits.MemoryBytes != 64<<20 || got.ExecTimeout != time.Second {
		t.Errorf("who asks for something: %+v", got)
	}
	got = open("bounded", session.Request{Image: "theirs:1", Language: "node", DefaultImage: true, Ceiling: backend.Limits{PIDs: 30}})
	if got.Image != "theirs:1" || got.Limits.PIDs != 30 {
		t.Errorf("who is bounded: %+v", got)
	}

	// Matching limits means matching only the limits that the request sets.
	if got = open("own", session.Request{
		Image: "theirs:1", Limits: backend.Limits{PIDs: 90}, Mode: session.OpenAsIs, Match: []string{"limits"},
	}); got.Limits.PIDs != 90 {
		t.Errorf("as it is: %+v", got)
	}
	if want := []string{"strong", "own", "strong"}; !slices.Equal(runtimes, want) {
		t.Errorf("made with the OCI runtimes %q, want %q", runtimes, want)
	}
	few, long := backend.Limits{PIDs: 1}, 2*sandbox.MaxExecTimeout
	for _, bad := range []session.Defaults{{Limits: few}, {ExecTimeout: long}, {Isolation: "kernal"}} {
		if _, err := session.NewManager(newEngine(t), &session.Options{Defaults: bad}); err == nil {
			t.Errorf("%+v was taken", bad)
		}
	}
}
