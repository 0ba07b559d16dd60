//go:build linux

package server_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/server"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// TestOrphanTimeout verifies that a guest agent without a host exits after the timeout, but not while a command is
// running. Background processes count as commands, unless the sandbox is ephemeral.
func TestOrphanTimeout(t *testing.T) {
	const held = "until [ -e go ]; do sleep 0.1; done; sleep "
	const left = `setsid sh -c "` + held + `6; touch done" >/dev/null 2>&1 </dev/null &`
	for name, test := range map[string]struct {
		script    string
		ephemeral bool
		done      bool // before the guest agent exits
	}{
		"command":                    {held + "3; touch done", true, true},
		"background process":         {left, false, true},
		"background of a gone owner": {left, true, false},
	} {
		t.Run(name, func(t *testing.T) { // not parallel: two guest agents in one process share the tags
			dir, err := filepath.EvalSymlinks(t.TempDir())
			must(t, err)
			const timeout = 2 * time.Second // time for the host to connect
			ended := make(chan struct{})
			s, err := server.New(server.Config{Workdir: dir, OrphanTimeout: timeout, Ephemeral: test.ephemeral,
				Orphaned: func() { close(ended) }})
			must(t, err)
			t.Cleanup(func() { must(t, s.Close()) })
			c := connect(t, s)
			sh := func(id, script string) *wire.RunResult {
				t.Helper()
				spawn := wire.Spawn{Argv: []string{"/bin/sh", "-c", script}, Dir: dir}
				res, err := c.Run(t.Context(), wire.RunRequest{ExecID: id, YieldMillis: 1000, Spawn: spawn})
				must(t, err)
				return &res
			}
			sh("first", "sleep 0.1")
			time.Sleep(timeout * 3 / 2) // long enough to detect a guest agent ignoring its host
			res := sh("second", test.script)
			if background := test.script == left; background != res.Leaked || background == (res.State == wire.ExecRunning) {
				t.Errorf("it is %+v", res.ExecStatus)
			}
			if h, err := c.Health(t.Context()); err != nil || h.Running != 1 {
				t.Errorf("%d commands run, %v", h.Running, err)
			}
			select {
			case <-ended:
				t.Error("it ended under its host")
			default:
			}
			must(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o644))
			must(t, c.Close())
			<-ended
			if _, err := os.Stat(filepath.Join(dir, "done")); (err == nil) != test.done {
				t.Errorf("what ran had its time: %v, want %v", err == nil, test.done)
			}
		})
	}
}
