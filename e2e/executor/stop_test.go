//go:build linux

package executor

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/session"
)

// TestCancelled: a CLI whose model does not answer is ended with its whole tree. What else ends one is among the faults, and with
// package executor.
func TestCancelled(t *testing.T) {
	each(t, func(t *testing.T, a agent) {
		r := newRig(t, a)
		r.model.asked, r.model.hang = make(chan struct{}, 100), make(chan struct{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			<-r.model.asked
			cancel()
		}()
		res, err := r.run(ctx, "", executor.Task{Prompt: "What is the total of order 42?"})
		if res.Outcome != executor.Cancelled || !errors.Is(err, context.Canceled) {
			t.Errorf("%+v, %v\n%s", res, err, r.output.Bytes())
		}
		r.alone()
	})
}

// alone fails the test when a process is left in the sandbox that is none of the guest's.
func (r *rig) alone() {
	r.t.Helper()
	res, err := r.s.Exec(context.Background(), session.ExecRequest{Command: `for p in /proc/[0-9]*; do tr '\0' ' ' < $p/cmdline; echo; done`})
	must(r.t, err)
	for line := range strings.Lines(string(res.Stdout.Bytes())) {
		for _, name := range []string{"claude", "codex", "opencode", "gemini", "workcell-guest mcp"} {
			if strings.Contains(line, name) && !strings.Contains(line, "cmdline") {
				r.t.Errorf("is left: %s", line)
			}
		}
	}
}
