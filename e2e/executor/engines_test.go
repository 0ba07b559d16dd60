//go:build linux

package executor

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/e2e/npmtest"
	"github.com/workcell-dev/workcell/executor"
	gateway "github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/llmtest"
)

// carried is a CLI in the workspace, because sandboxes of the local backend have no images.
type carried struct{ executor.Driver }

func (c carried) Prepare(t executor.Task, in executor.Inside) (executor.Invocation, error) {
	inv, err := c.Driver.Prepare(t, in)
	if err == nil {
		inv.Argv[0] = in.Workdir + "/" + c.Name()
	}
	return inv, err
}

// newCarried returns a local desk whose CLI is a program in the workspace.
func newCarried(t *testing.T, a agent, program string) *desk {
	t.Helper()
	a.Driver, a.image = carried{a.Driver}, "debian:12"
	d := newDesk(t, managerOn(t, "local"), a, backend.Limits{})
	enginetest.Put(t, d.s, program, a.Name())
	return d
}

// TestLocal: the single-file CLIs work in namespaces like in containers.
func TestLocal(t *testing.T) {
	t.Parallel()
	_, modules := npmtest.Tools(t)
	programs := map[string]string{"claude": npmtest.ClaudeCode(t, modules), "opencode": npmtest.OpenCode(t, modules)}
	for _, a := range agents() {
		program := programs[a.Name()]
		if program == "" { // not a single file
			continue
		}
		t.Run(a.Name(), func(t *testing.T) {
			t.Parallel()
			newCarried(t, a, program).everything(t)
		})
	}
}

// TestContainerd: the CLIs work on containerd like on Docker.
func TestContainerd(t *testing.T) {
	each(t, func(t *testing.T, a agent) {
		newDesk(t, managerOn(t, "containerd"), a, ample).everything(t)
	})
}

// everything makes the CLI use all features in one sandbox.
func (d *desk) everything(t *testing.T) {
	works := func(what string, x trial) executor.Result {
		t.Helper()
		res, used, err := d.try(t.Context(), x)
		if err != nil || res.Outcome != executor.Completed || used.Requests == 0 {
			t.Errorf("%s: %s %q, %+v, %v\n%s", what, res.Outcome, res.Detail, used, err, d.output.Bytes())
		}
		return res
	}
	if res := works("a tool of the host", trial{}); !strings.Contains(res.Text, "12.5") || len(d.calls) != 1 {
		t.Errorf("it answers %q after %d calls", res.Text, len(d.calls))
	}
	remember := trial{o: func(o *executor.Options) { o.Resume = executor.ResumeSession }}
	first, second := works("a session", remember), works("resume", remember)
	if !second.Resumed || second.SessionID != first.SessionID {
		t.Errorf("session %q, then %q", first.SessionID, second.SessionID)
	}
	schema := works("schema", trial{
		task: executor.Task{Schema: []byte(totalSchema)},
		play: func(_ int, r llmtest.Request) llmtest.Answer {
			if _, ok := r.Tools()["StructuredOutput"]; ok && len(r.Results()) == 0 { // a tool of Claude Code
				return llmtest.Answer{Calls: []llmtest.Call{{Name: "StructuredOutput", Input: llmtest.Object{"total": 12.5}}}}
			}
			return llmtest.Answer{Text: `{"total":12.5}`}
		},
	})
	if string(schema.Data) != `{"total":12.5}` {
		t.Errorf("by the schema: %s", schema.Data)
	}
	works("skills", trial{o: func(o *executor.Options) { o.Skills = herons(t) }})
	if asked := d.mock.Requests(); !strings.Contains(fmt.Sprint(asked[len(asked)-1].Body), "about grey herons") {
		t.Error("the model saw no skill")
	}
	if res, _, err := d.try(t.Context(), trial{g: gateway.Budget{USD: .0001}}); err != nil || res.Outcome != executor.Budget {
		t.Errorf("budget: %s %q, %v", res.Outcome, res.Detail, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	res, _, _ := d.try(ctx, trial{play: func(n int, r llmtest.Request) llmtest.Answer { // the error is the error of ctx
		cancel()
		return lookUp(n, r)
	}})
	if res.Outcome != executor.Cancelled {
		t.Errorf("cancelled: %s %q", res.Outcome, res.Detail)
	}
	d.alone()
	if seen := d.look(); seen != "walls stand\n" {
		t.Errorf("inside:\n%s", seen)
	}
}
