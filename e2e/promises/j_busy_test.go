package promises

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
)

// TestJ6Busy: a reaper takes the sandbox that nobody uses, and none with a command, in the background or with somebody at
// its streams.
func TestJ6Busy(t *testing.T) {
	t.Parallel()
	m := newManager(t, w.driver, session.Options{IdleTimeout: 15 * time.Second, ReapEvery: 100 * time.Millisecond})
	open := func(name string) *session.Session {
		s, _, err := m.Open(t.Context(), session.UserKey(name), request())
		must(t, err)
		return s
	}
	const line = "echo began; until test -e go; do sleep 0.1; done; echo went"
	background := open("background")
	began, err := background.Exec(t.Context(), session.ExecRequest{Command: line, Background: true, Timeout: 10 * time.Minute})
	must(t, err)
	stream := open("stream")
	var out buffer
	ended := make(chan error, 1)
	go func() {
		_, err := stream.Stream(t.Context(), session.ExecRequest{Command: line, Timeout: 10 * time.Minute}, session.Streams{Stdout: &out})
		ended <- err
	}()
	eventually(t, "the command with streams is under way", func() bool { return out.String() != "" })
	idle := open("idle") // what was used before it has been idle for longer
	eventually(t, "the idle one is closed", func() bool { return idle.Info().State == session.StateClosed })
	for _, s := range []*session.Session{background, stream} {
		if _, err := s.Exec(t.Context(), session.ExecRequest{Argv: []string{"touch", "go"}}); err != nil {
			t.Errorf("%s: %v", s.Key(), err)
		}
	}
	if st, err := background.WaitExec(t.Context(), began.ExecID, patience); err != nil || st.Status != session.ExecCompleted {
		t.Errorf("the command in the background: %+v, %v", st, err)
	}
	if err := <-ended; err != nil || out.String() != "began\nwent\n" {
		t.Errorf("the command with streams: %q, %v", out.String(), err)
	}
}

// TestJ7Crowd: whatever many callers do in a sandbox at once, each gets what is its own.
func TestJ7Crowd(t *testing.T) {
	t.Parallel()
	b := newBox(t, pythonBox())
	dir := b.dir(t)
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			mine := fmt.Sprintf("caller %d\n", i)
			file := fmt.Sprintf("%s/%d", dir, i)
			call := func(tool string, in obj) obj {
				out, err := b.raw(context.WithoutCancel(t.Context()), tool, in)
				if err != nil || code(out) != "" {
					t.Errorf("%s %s: %v, %v", tool, file, out, err)
				}
				return out
			}
			call(toolspec.ToolFSWrite, obj{"path": file, "contents": mine})
			out := call(toolspec.ToolExec, obj{"command": "for i in 1 2 3 4 5 6 7 8 9; do cat " + file + "; cat >&2; done", "stdin": mine, "yield_ms": 600_000, "timeout_seconds": 600})
			if out["stdout"] != strings.Repeat(mine, 9) || out["stderr"] != mine || out["exit_code"] != 0.0 {
				t.Errorf("%s got %v", mine, out)
			}
			if got := call(toolspec.ToolFSRead, obj{"path": file}); got["contents"] != mine {
				t.Errorf("%s holds %v", file, got)
			}
			call(toolspec.ToolFSDelete, obj{"path": file})
		})
	}
	wg.Wait()
	if out := b.ok(t, toolspec.ToolFSList, obj{"path": dir}); len(out["entries"].([]any)) != 0 {
		t.Errorf("left: %v", out)
	}
}
