//go:build linux

package executor

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/internal/llmtest"
	"github.com/workcell-dev/workcell/sandbox"
)

// shell makes the model run a command once, and then end.
func shell(tool, argument, command string) func(int, llmtest.Request) llmtest.Answer {
	return func(_ int, r llmtest.Request) llmtest.Answer {
		if len(r.Results()) > 0 {
			return llmtest.Answer{Text: "That is all."}
		}
		return llmtest.Answer{Calls: []llmtest.Call{{Name: tool, Input: llmtest.Object{argument: command}}}}
	}
}

// TestLimits: a coding agent at a limit of its sandbox reports the limit at the end, or continues without the killed
// process. The sandbox and the host must not be affected.
func TestLimits(t *testing.T) {
	t.Parallel()
	claude := agents()[0]
	for name, tt := range map[string]struct {
		limits  backend.Limits
		command string
	}{
		"memory":    {backend.Limits{MemoryBytes: 512 << 20, PIDs: 512}, "tail /dev/zero"},
		"processes": {backend.Limits{MemoryBytes: 2 << 30, PIDs: 64}, "i=0; while [ $i -lt 200 ]; do sleep 600 & i=$((i+1)); done; wait"},
		"workspace": {backend.Limits{MemoryBytes: 2 << 30, PIDs: 512, WorkspaceBytes: 64 << 20}, "head -c 200M /dev/zero > big"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, manager(t), claude, tt.limits)
			res, used, err := d.try(t.Context(), trial{play: shell("Bash", "command", tt.command)})
			if ended := res.Outcome == executor.Crashed && res.Detail != ""; err != nil || used.Requests == 0 || res.Outcome != executor.Completed && !ended {
				t.Errorf("%s %q, %+v, %v", res.Outcome, res.Detail, used, err)
			}
			d.alone()
			out, err := d.s.Exec(t.Context(), sandbox.ExecRequest{Command: `test "$(du -sm . | cut -f 1)" -le 80 && rm -f big && echo works`})
			if err != nil || tt.limits.WorkspaceBytes > 0 && string(out.Stdout.Bytes()) != "works\n" || out.Status != sandbox.ExecCompleted {
				t.Errorf("the sandbox: %+v, %v", out.ExecStatus, err)
			}
		})
	}
}

// TestSideBySide verifies concurrent coding agents: eight in separate sandboxes and two in one sandbox. Each answers
// with the output of the right model, and their usages do not mix.
func TestSideBySide(t *testing.T) {
	t.Parallel()
	m, codex := manager(t), agents()[1]
	limits := backend.Limits{MemoryBytes: 1 << 30, PIDs: 512}
	var wg sync.WaitGroup
	for i := range 8 {
		d := newDesk(t, m, codex, limits)
		wg.Go(func() {
			text := fmt.Sprintf("This is answer %d.", i)
			res, used, err := d.try(t.Context(), trial{play: func(int, llmtest.Request) llmtest.Answer { return llmtest.Answer{Text: text} }})
			if got := d.mock.Used(); err != nil || res.Text != text || used.InputTokens != got.Input || used.OutputTokens != got.Output || used.Requests != got.Requests {
				t.Errorf("%+v, metered %+v, used %+v, %v", res, used, got, err)
			}
		})
	}
	shared := newRig(t, codex)
	shared.model.tool, shared.model.text = "", "Both."
	for _, name := range []string{"one", "two"} {
		wg.Go(func() {
			o := shared.o
			o.Agent, o.Keep = name, nil
			res, err := executor.Run(t.Context(), shared.s, codex.Driver, executor.Task{Prompt: "I am " + name, Model: codex.model}, &o)
			if err != nil || res.Text != "Both." || res.Outcome != executor.Completed {
				t.Errorf("%s: %+v, %v", name, res, err)
			}
		})
	}
	wg.Wait()
	if !shared.model.seen("I am one") || !shared.model.seen("I am two") {
		t.Error("the model did not see both")
	}
}

// TestWalls verifies the isolation of a coding agent. It runs as an unprivileged user with a read-only root and no
// network except loopback. The operator's key does not appear in processes, environment, files, events, or output.
func TestWalls(t *testing.T) {
	each(t, func(t *testing.T, a agent) {
		d := newDesk(t, manager(t), a, ample)
		var seen string
		res, _, err := d.try(t.Context(), trial{play: func(n int, r llmtest.Request) llmtest.Answer {
			if n == 0 { // while the agent works
				seen = d.look()
			}
			return lookUp(n, r)
		}})
		must(t, err)
		seen += d.look()
		if res.Outcome != executor.Completed || strings.Count(seen, "walls stand\n") != 2 {
			t.Errorf("%s, and inside:\n%s", res.Outcome, seen)
		}
		told := fmt.Sprintf("%+v %s", d.events, d.output.Bytes())
		if strings.Contains(seen, operatorsKey) || strings.Contains(told, operatorsKey) {
			t.Error("the operator's key is inside")
		}
	})
}

// look runs a command that checks the isolation from inside.
func (d *desk) look() string {
	res, err := d.s.Exec(d.t.Context(), sandbox.ExecRequest{Command: `
test "$(id -u)" != 0 || echo root
! touch /outside 2>/dev/null || echo writable
! grep -v '^ *lo:' /proc/net/dev | grep : || echo network
cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | tr '\0' '\n' | grep 'sk-canary[-]of'
grep -rs 'sk-canary[-]of' /workspace /tmp /dev/shm
echo walls stand`})
	if err != nil {
		return err.Error()
	}
	return string(res.Stdout.Bytes())
}
