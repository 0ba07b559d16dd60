package workflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/genkit"
	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/workflow"
)

func TestPanics(t *testing.T) {
	t.Parallel()
	for name, fn := range map[string]agents{
		"panic": func(context.Context, string, map[string]any) (workflow.AgentOutput, error) { panic("oh no\nno") },
		"nil map": func(context.Context, string, map[string]any) (workflow.AgentOutput, error) {
			var m map[string]int
			m["x"] = 1 //nolint:govet,staticcheck // the test needs this panic
			return workflow.AgentOutput{}, nil
		},
		"goexit": func(context.Context, string, map[string]any) (workflow.AgentOutput, error) {
			runtime.Goexit()
			return workflow.AgentOutput{}, nil
		},
	} {
		wf := parse(t, `
  - {id: a, type: agent, agent: x, retry: {max_attempts: 2, backoff: 0s}, on_error: b}
  - {id: b, type: end, output: "${ steps.a.error.code + ' ' + string(steps.a.attempts) }"}`)
		res, err := workflow.NewEngine(nil, fn, nil).Run(t.Context(), wf, nil)
		want := "panic 2"
		if name == "goexit" {
			want = "internal 2"
		}
		if err != nil || res.Output != want {
			t.Errorf("%s: Run = %v, %v", name, res.Output, err)
		}
	}
	// An observer is code of the caller. For journals, see TestJournalFails.
	wf := parse(t, "steps: [{id: a, type: end}]")
	res, err := workflow.NewEngine(nil, nil, &workflow.Options{OnEvent: func(workflow.Event) { panic("observer") }}).Run(t.Context(), wf, nil)
	if err != nil || res.Outcome != workflow.Succeeded {
		t.Errorf("panicking observer: %+v, %v", res, err)
	}
}

// TestNestedRunFails verifies that the failure of a workflow an agent runs can be handled as the step's failure.
func TestNestedRunFails(t *testing.T) {
	t.Parallel()
	inner := parse(t, "id: inner\nmax_steps: 1\nsteps: [{id: a, type: set, vars: {x: 1}}, {id: b, type: end}]")
	outer := parse(t, "id: outer\nsteps: [{id: a, type: agent, agent: x, on_error: b}, {id: b, type: end, output: \"${ steps.a.error }\"}]")
	var engine *workflow.Engine
	engine = workflow.NewEngine(nil, agents(func(ctx context.Context, _ string, _ map[string]any) (workflow.AgentOutput, error) {
		_, err := engine.Run(ctx, inner, nil)
		return workflow.AgentOutput{}, err
	}), nil)
	res, err := engine.Run(t.Context(), outer, nil)
	checktest.Must(t, err)
	want := map[string]any{"code": "max_steps", "message": "agent x: step b: the run reached max_steps (1)"}
	if diff := cmp.Diff(want, res.Output); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestCaps verifies that every run is bounded.
func TestCaps(t *testing.T) {
	t.Parallel()
	big := make([]any, 1_000_000)
	for name, tt := range map[string]struct {
		src   string
		input map[string]any
		err   string
		steps int
	}{
		"infinite loop": {src: `
max_steps: 100
steps:
  - {id: a, type: set, vars: {x: 1}, on_error: continue}
  - {id: s, type: switch, cases: [{when: "false", next: e}], default: a}
  - {id: e, type: end}`,
			err: "step a: the run reached max_steps (100)", steps: 100,
		},
		"loop over on_error": {src: `
max_steps: 30
steps:
  - {id: a, type: agent, agent: x, on_error: a, retry: {max_attempts: 20, backoff: 0s}}
  - {id: e, type: end}`,
			err: "step a: the run reached max_steps (30)", steps: 30,
		},
		"a million items": {
			input: map[string]any{"list": big},
			src:   "steps: [{id: f, type: for_each, items: input.list, steps: [{id: a, type: set, vars: {x: 1}}]}]",
			err:   "invalid input: the result has more than 100000 values: expression limit exceeded",
		},
		"too many items": {
			input: map[string]any{"list": big[:50_000]},
			src:   "max_steps: 100000\nsteps: [{id: f, type: for_each, items: input.list, steps: [{id: a, type: set, vars: {x: 1}}]}]",
			err:   "step f: 50000 items, at most 10000 are allowed", steps: 1,
		},
		"items beyond max_steps": {
			input: map[string]any{"list": big[:60]},
			src:   "steps: [{id: f, type: for_each, items: input.list, on_error: continue, steps: [{id: a, type: set, vars: {x: 1}}]}]",
			err:   "step f: 60 items need at least as many steps, but only 49 of max_steps 50 remain", steps: 1,
		},
		"max_steps in branches": {
			input: map[string]any{"list": big[:40]},
			src:   "steps: [{id: f, type: for_each, items: input.list, on_error: continue, max_concurrency: 8, fail_fast: false, steps: [{id: a, type: set, vars: {x: 1}}, {id: b, type: set, vars: {x: 1}, on_error: continue}]}]",
			err:   "the run reached max_steps (50)", steps: 50,
		},
		"an output that is too large": {src: "steps: [{id: a, type: agent, agent: large}]",
			err: "step a: cannot save the output: the result has more than 4194304 bytes: expression limit exceeded", steps: 1,
		},
		"too much to remember": {
			input: map[string]any{"list": big[:100]},
			src: `
max_steps: 1000
steps:
  - {id: f, type: for_each, items: input.list, steps: [{id: a, type: agent, agent: half}, {id: b, type: end, output: 0}]}
  - {id: g, type: for_each, items: input.list, max_concurrency: 64, steps: [{id: c, type: agent, agent: half}, {id: d, type: agent, agent: half}, {id: e, type: agent, agent: wait}]}`,
			err: "the run's data exceeds 64 MiB",
		},
		"visits in an item": {src: `
  - {id: f, type: for_each, items: [1], steps: [{id: a, type: set, vars: {x: 1}, max_visits: 2, next: a}]}`,
			err: "max_visits",
		},
		"an expression bomb": {src: `
  - {id: a, type: set, vars: {l: "${ input.list.map(x, input.list.map(y, input.list)) }"}}`,
			input: map[string]any{"list": big[:1000]},
			// The expression takes more than a million steps or, on a busy host, longer than two seconds.
			err: "test.yaml:3:37: step a: the expression takes ", steps: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			res, err := workflow.NewEngine(nil, agents(func(ctx context.Context, name string, _ map[string]any) (workflow.AgentOutput, error) {
				switch name {
				case "large":
					return workflow.AgentOutput{Text: strings.Repeat("x", 5<<20)}, nil
				case "half":
					return workflow.AgentOutput{Text: strings.Repeat("x", 2<<20)}, nil
				case "wait":
					<-ctx.Done()
				}
				return workflow.AgentOutput{}, errors.New("no")
			}), nil).Run(t.Context(), parse(t, tt.src), tt.input)
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("Run = %v, want %s", err, tt.err)
			}
			if tt.steps > 0 && res.Steps != tt.steps {
				t.Errorf("%d steps, want %d", res.Steps, tt.steps)
			}
			if !errors.Is(err, workflow.ErrLimit) && !errors.Is(err, workflow.ErrInvalidInput) {
				t.Errorf("%v is not ErrLimit", err)
			}
		})
	}
}

// TestRecursion verifies that a workflow cannot run itself, not even through an agent of another workflow.
func TestRecursion(t *testing.T) {
	t.Parallel()
	wfs := map[string]*workflow.Workflow{}
	for _, id := range []string{"a", "b", "c"} {
		next := map[string]string{"a": "b", "b": "c", "c": "a"}[id]
		wfs[id] = parse(t, fmt.Sprintf("id: %s\nsteps: [{id: x, type: agent, agent: %s}]", id, next))
	}
	var engine *workflow.Engine
	runs := 0
	engine = workflow.NewEngine(nil, agents(func(ctx context.Context, name string, _ map[string]any) (workflow.AgentOutput, error) {
		runs++
		_, err := engine.Run(ctx, wfs[name], nil)
		return workflow.AgentOutput{}, err
	}), nil)
	_, err := engine.Run(t.Context(), wfs["a"], nil)
	if !errors.Is(err, workflow.ErrRecursion) || !strings.Contains(err.Error(), "a -> b -> c -> a") || runs != 3 {
		t.Errorf("Run = %v after %d runs", err, runs)
	}
}

func TestConcurrentRuns(t *testing.T) {
	t.Parallel()
	wf := parse(t, `
vars: {n: 0}
max_steps: 1000
steps:
  - {id: p, type: parallel, branches: [
      {id: one, steps: [{id: a, type: agent, agent: x, input: {n: "${ input.n }"}}]},
      {id: two, steps: [{id: f, type: for_each, items: [1, 2, 3], max_concurrency: 3, steps: [{id: b, type: agent, agent: y, input: {n: "${ item }"}}]}]}]}
  - {id: e, type: end, output: "${ [steps.p.output.one, steps.p.output.two, input.n] }"}`)
	engine := workflow.NewEngine(nil, agents(func(_ context.Context, name string, in map[string]any) (workflow.AgentOutput, error) {
		return workflow.AgentOutput{Output: map[string]any{"got": in["n"]}}, nil
	}), nil)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			res, err := engine.Run(t.Context(), wf, map[string]any{"n": i})
			if err != nil {
				t.Error(err)
				return
			}
			got := func(n int) any { return map[string]any{"got": int64(n)} }
			if diff := cmp.Diff([]any{got(i), []any{got(1), got(2), got(3)}, int64(i)}, res.Output); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
	wg.Wait()
}

func TestRegister(t *testing.T) {
	t.Parallel()
	g := genkit.Init(t.Context(), genkit.WithPromptDir(t.TempDir()))
	wf := parse(t, `
id: greet
description: Says hello.
input: {type: object, required: [name], properties: {name: {type: string}}}
steps: [{id: a, type: agent, agent: echo}, {id: b, type: end, output: "${ 'hello ' + input.name }"}]`)
	rec := &recorder{}
	engine := workflow.NewEngine(nil, agents(echo), &workflow.Options{OnEvent: rec.add})
	checktest.Must(t, engine.Register(g, wf))
	if err := engine.Register(g, wf); err == nil {
		t.Error("registered twice")
	}
	flows := genkit.ListFlows(g)
	i := slices.IndexFunc(flows, func(a api.Action) bool { return a.Name() == "greet" })
	if i < 0 {
		t.Fatalf("%d flows, none is greet", len(flows))
	}
	desc := flows[i].Desc()
	if diff := cmp.Diff(wf.InputSchema(), desc.InputSchema); diff != "" || desc.Description != "Says hello." {
		t.Errorf("%q, schema (-want +got)\n%s", desc.Description, diff)
	}
	var events int
	out, err := flows[i].RunJSON(t.Context(), []byte(`{"name": "you"}`), func(context.Context, json.RawMessage) error { events++; return nil })
	if err != nil || string(out) != `"hello you"` {
		t.Errorf("RunJSON = %s, %v", out, err)
	}
	if events != len(rec.events) || events == 0 {
		t.Errorf("%d events were streamed, %d reported", events, len(rec.events))
	}
	if _, err := flows[i].RunJSON(t.Context(), []byte(`{}`), nil); err == nil {
		t.Error("ran with an invalid input")
	}
}
