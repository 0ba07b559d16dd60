//go:build linux

package promises

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/internal/toolspec"
)

// TestJ4GivenBack: closing kills the leftover processes of commands, even if the sandbox stays, and whether or not a
// process holds the output or has a separate session.
func TestJ4GivenBack(t *testing.T) {
	t.Parallel()
	b := newSandbox(t, pythonSandbox())
	b.ok(t, toolspec.ToolExec, obj{"command": "sleep 100001 & sleep 100001 >/dev/null 2>&1 & setsid sleep 100001 >/dev/null 2>&1 </dev/null & echo ok"})
	b.ok(t, toolspec.ToolClose, obj{})
	b.ok(t, toolspec.ToolOpen, obj{})
	const sleepers = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done 2>/dev/null | grep -c '^sleep 10000[1] '"
	if out := b.ok(t, toolspec.ToolExec, obj{"command": sleepers}); out["stdout"] != "0\n" {
		t.Errorf("a sandbox that was closed and opened again has %v earlier processes", out["stdout"])
	}
}

// TestJ7Crowd: concurrent callers in one sandbox get their own results.
func TestJ7Crowd(t *testing.T) {
	t.Parallel()
	b := newSandbox(t, pythonSandbox())
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
