//go:build linux

package executor

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/e2e/npmtest"
	"github.com/workcell-dev/workcell/executor"
	gateway "github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/llmtest"
)

// TestACP: a CLI works the same through the Agent Client Protocol as with its own command line on every engine: it
// answers, calls a host tool, and resumes, with skills and a schema. It also ends with the budget.
func TestACP(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"docker", "containerd", "local"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			a := speakers()[0]
			if engine != "local" {
				newDesk(t, managerOn(t, engine), a, ample).speaks(t)
				return
			}
			_, modules := npmtest.Tools(t)
			newCarried(t, a, npmtest.OpenCode(t, modules)).speaks(t)
		})
	}
}

// speaks makes the CLI use all protocol features in as few calls as possible, because OpenCode needs some seconds to
// start.
func (d *desk) speaks(t *testing.T) {
	resume := func(o *executor.Options) { o.Resume, o.Skills = executor.ResumeSession, herons(t) }
	first, _, err := d.try(t.Context(), trial{o: resume})
	if err != nil || first.Outcome != executor.Completed || !strings.Contains(first.Text, "12.5") || len(d.calls) != 1 {
		t.Errorf("%+v, %v: %d calls\n%s", first, err, len(d.calls), d.output.Bytes())
	}
	asked := d.mock.Requests()
	if !strings.Contains(fmt.Sprint(asked[len(asked)-1].Body), "about grey herons") {
		t.Error("the model saw no skill")
	}
	again, used, err := d.try(t.Context(), trial{o: resume, task: executor.Task{Schema: []byte(`{"type":"object"}`)}, play: func(int, llmtest.Request) llmtest.Answer {
		return llmtest.Answer{Text: `{"total":12.5}`}
	}})
	if err != nil || again.Outcome != executor.Completed || !again.Resumed || again.SessionID != first.SessionID || string(again.Data) != `{"total":12.5}` || used.Requests == 0 {
		t.Errorf("%+v\nthen %+v, %+v, %v", first, again, used, err)
	}
	d.alone()
	if seen := d.look(); seen != "walls stand\n" {
		t.Errorf("inside:\n%s", seen)
	}
	if d.s.Info().Backend != "docker" { // a CLI is stopped in the same way on all engines
		return
	}
	if res, _, err := d.try(t.Context(), trial{g: gateway.Budget{USD: .0001}}); err != nil || res.Outcome != executor.Budget {
		t.Errorf("budget: %s %q, %v", res.Outcome, res.Detail, err)
	}
}

// TestACPRecorded records the output of the CLIs for the driver's tests. Information missing from the reports of CLIs
// is not checked.
func TestACPRecorded(t *testing.T) {
	t.Parallel()
	for _, a := range speakers() {
		t.Run(a.Name(), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, a)
			first, err := r.run(t.Context(), "tool", executor.Task{Prompt: "What is the total of order 42?", System: "You are a bookkeeper."})
			must(t, err)
			if first.Outcome != executor.Completed || first.Text != r.model.text || len(r.calls) != 1 || !r.model.seen("You are a bookkeeper.") {
				t.Errorf("%s: %q, %v\n%s\n%s", first.Outcome, first.Text, r.calls, first.Detail, r.output.Bytes())
			}
			if a.Name() == "opencode" { // Gemini CLI does not report the input
				r.checkTools()
			} else if end := r.events[len(r.events)-1]; end.Kind != executor.KindEnd || first.ToolCalls != 1 || first.Told.Input != 200 {
				t.Errorf("%+v: %+v", first, r.events)
			}
			r.model.status = http.StatusForbidden
			refused, err := r.run(t.Context(), "refused", executor.Task{Prompt: "What is the total?"})
			must(t, err)
			// OpenCode does not report why the model failed.
			if want := map[string]executor.Outcome{"opencode": executor.ModelError, "gemini": executor.AuthError}[a.Name()]; refused.Outcome != want {
				t.Errorf("%+v\n%s", refused, r.output.Bytes())
			}
		})
	}
}
