//go:build linux

package session_test

import (
	"testing"
	"time"

	"github.com/workcell-dev/workcell/session"
)

// TestEngineIsAskedForOOMKills: where the guest cannot see the kernel's count, the engine's decides.
func TestEngineIsAskedForOOMKills(t *testing.T) {
	t.Parallel()
	e := newEngine(t)
	m := newManager(t, e, &session.Options{ReapEvery: -1})
	clock := newClock(m)
	s := mustOpen(t, m, session.WorkflowKey("run_1", "default"))
	s.SetGuestCounts(false)
	for _, test := range []struct {
		kills   int64
		command string
		want    session.ExecState
	}{
		{0, "kill -9 $$", session.ExecCompleted},
		{1, "kill -9 $$", session.ExecOOMKilled},
		{1, "kill -9 $$", session.ExecCompleted}, // the same count says nothing of a later command
		{3, "exit 137", session.ExecOOMKilled},
		{4, "kill -15 $$", session.ExecCompleted}, // not what the kernel does for lack of memory
		{4, "exit 1", session.ExecCompleted},
	} {
		clock.add(time.Minute)
		e.oomKills.Store(test.kills)
		if res := run(t, s, session.ExecRequest{Command: test.command}); res.Status != test.want {
			t.Errorf("%q with %d kills counted: %+v, want %s", test.command, test.kills, res.ExecStatus, test.want)
		}
	}
}
