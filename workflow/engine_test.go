package workflow_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/workflow"
)

// TestRun verifies, in each row, the path and the result of one workflow without sandboxes.
func TestRun(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, tt := range map[string]struct {
		src     string
		input   map[string]any
		answers map[string][]any
		trail   []string
		output  any
		err     string
	}{
		"loop until the tests pass": {src: `
max_steps: 20
steps:
  - {id: fix, type: agent, agent: fixer}
  - {id: test, type: agent, agent: tester}
  - id: check
    type: switch
    expression: steps.test.output.all_passed
    transitions: [{condition: "true", next: done}, {condition: "false", next: fix}]
  - {id: done, type: end, output: {fixes: "${ steps.fix.visits }", last: "${ steps.fix.output }"}}`,
			answers: map[string][]any{
				"fixer": {"one", "two"}, "tester": {map[string]any{"all_passed": false}, map[string]any{"all_passed": true}}},
			trail:  []string{"fix:succeeded", "test:succeeded", "check:succeeded", "fix:succeeded", "test:succeeded", "check:succeeded", "done:succeeded"},
			output: map[string]any{"fixes": int64(2), "last": "two"},
		},
		"start, next and if": {src: `
start: b
steps:
  - {id: a, type: set, vars: {x: 1}, next: c}
  - {id: b, type: set, if: "input.go == 'yes'", vars: {y: 2}, next: d}
  - {id: c, type: set, if: "has(vars.x)", vars: {z: 3}}
  - {id: d, type: switch, cases: [{when: "has(vars.x)", next: e}], default: a, max_visits: 2}
  - {id: e, type: end, output: "${ vars }"}`,
			input:  map[string]any{"go": "no"},
			trail:  []string{"b:skipped", "c:skipped", "d:succeeded", "a:succeeded", "c:succeeded", "d:succeeded", "e:succeeded"},
			output: map[string]any{"x": int64(1), "z": int64(3)},
		},
		"on_error leads elsewhere": {src: `
  - {id: a, type: agent, agent: bad, on_error: repair}
  - {id: b, type: agent, agent: good, next: z}
  - {id: repair, type: set, vars: {why: "${ steps.a.error.code + ': ' + steps.a.error.message }"}}
  - {id: z, type: end, output: "${ vars.why }"}`,
			answers: map[string][]any{"bad": {boom}},
			trail:   []string{"a:failed", "repair:succeeded", "z:succeeded"}, output: "agent_failed: agent bad: boom",
		},
		"an error in an expression has its place": {src: `
  - id: a
    type: set
    vars:
      x: "text ${ input.nope }"`,
			trail: []string{"a:failed"}, err: "test.yaml:6:24: step a: no such key: nope",
		},
		"an if that fails": {src: `
  - {id: a, type: end, if: "input.n > 'x'"}`,
			input: map[string]any{"n": 1},
			trail: []string{"a:failed"}, err: "test.yaml:3:37: step a: the types do not match; convert with int(), double() or string()",
		},
		"switch without a match": {src: `
  - {id: s, type: switch, expression: input.x, transitions: [{condition: a, next: e}]}
  - {id: e, type: end}`,
			input: map[string]any{"x": "b"},
			trail: []string{"s:failed"}, err: `step s: no transition for "b" and default is not set`,
		},
		"switch compares as text": {src: `
  - {id: s, type: switch, expression: input.x, transitions: [{condition: 3, next: e}, {condition: "null", next: f}]}
  - {id: e, type: end, output: three}
  - {id: f, type: end, output: nothing}`,
			input: map[string]any{"x": 3},
			trail: []string{"s:succeeded", "e:succeeded"}, output: "three",
		},
		"max_visits": {src: `
  - {id: a, type: set, vars: {x: 1}, max_visits: 2, on_error: out}
  - {id: s, type: switch, cases: [{when: "true", next: a}], default: out}
  - {id: out, type: end, output: "${ steps.a.error.code }"}`,
			trail: []string{"a:succeeded", "s:succeeded", "a:succeeded", "s:succeeded", "a:failed", "out:succeeded"}, output: "max_visits",
		},
		"parallel": {src: `
  - {id: before, type: set, vars: {x: 1}}
  - id: p
    type: parallel
    max_concurrency: 1
    branches:
      - {id: one, steps: [{id: a, type: agent, agent: one}, {id: b, type: set, vars: {x: 2}}]}
      - {id: two, output: "${ vars.x }", steps: [{id: c, type: agent, agent: two}]}
      - {id: three, steps: [{id: d, type: end, output: early}]}
  - {id: e, type: end, output: {p: "${ steps.p.output }", x: "${ vars.x }"}}`,
			answers: map[string][]any{"one": {"1"}, "two": {"2"}},
			trail:   []string{"before:succeeded", "p.one/a:succeeded", "p.one/b:succeeded", "p.two/c:succeeded", "p.three/d:succeeded", "p:succeeded", "e:succeeded"},
			output:  map[string]any{"p": map[string]any{"one": "1", "two": int64(1), "three": "early"}, "x": int64(1)},
		},
		"parallel fails fast": {src: `
  - id: p
    type: parallel
    max_concurrency: 1
    branches:
      - {id: one, steps: [{id: a, type: agent, agent: bad}]}
      - {id: two, steps: [{id: b, type: agent, agent: good}]}`,
			answers: map[string][]any{"bad": {boom}, "good": {"x"}},
			trail:   []string{"p.one/a:failed", "p:failed"}, err: "step p: branch one failed: agent bad: boom",
		},
		"for_each": {src: `
  - id: each
    type: for_each
    items: input.files
    as: file
    output: "${ string(index) + ':' + steps.look.output + ':' + vars.v }"
    steps:
      - {id: look, type: agent, agent: looker, input: {file: "${ file }"}}
      - {id: keep, type: set, vars: {v: "${ file }"}}
  - {id: e, type: end, output: "${ steps.each.output }"}`,
			input:   map[string]any{"files": []any{"a", "b"}},
			answers: map[string][]any{"looker": {"x", "y"}},
			trail:   []string{"each[0]/look:succeeded", "each[0]/keep:succeeded", "each[1]/look:succeeded", "each[1]/keep:succeeded", "each:succeeded", "e:succeeded"},
			output:  []any{"0:x:a", "1:y:b"},
		},
		"for_each of an empty list and of text": {src: `
  - {id: none, type: for_each, items: "[]", steps: [{id: a, type: set, vars: {x: 1}}]}
  - {id: bad, type: for_each, items: input.s, steps: [{id: b, type: set, vars: {x: 1}}]}`,
			input: map[string]any{"s": "text"},
			trail: []string{"none:succeeded", "bad:failed"}, err: "test.yaml:4:38: step bad: items must be a list, not a string",
		},
		"nested fan-out": {src: `
  - id: outer
    type: for_each
    items: [[1, 2], [3]]
    as: row
    steps:
      - {id: inner, type: for_each, items: row, as: cell, index_as: column, output: "${ cell * 10 }", steps: [{id: x, type: set, vars: {y: "${ cell }"}}]}
  - {id: e, type: end, output: "${ steps.outer.output }"}`,
			trail:  []string{"outer[0]/inner[0]/x:succeeded", "outer[0]/inner[1]/x:succeeded", "outer[0]/inner:succeeded", "outer[1]/inner[0]/x:succeeded", "outer[1]/inner:succeeded", "outer:succeeded", "e:succeeded"},
			output: []any{[]any{int64(10), int64(20)}, []any{int64(30)}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rec := &recorder{}
			engine := workflow.NewEngine(nil, script(tt.answers), &workflow.Options{OnEvent: rec.add})
			res, err := engine.Run(t.Context(), parse(t, tt.src), tt.input)
			if diff := cmp.Diff(tt.trail, rec.trail()); diff != "" {
				t.Errorf("trail (-want +got)\n%s", diff)
			}
			if tt.err != "" {
				if err == nil || err.Error() != tt.err || res.Outcome != workflow.Failed || res.Output != nil {
					t.Errorf("Run = %+v, %v; want %s", res, err, tt.err)
				}
				return
			}
			checktest.Must(t, err)
			if diff := cmp.Diff(tt.output, res.Output); diff != "" || res.Outcome != workflow.Succeeded {
				t.Errorf("%s, output (-want +got)\n%s", res.Outcome, diff)
			}
		})
	}
}

func TestAgentSeesItsRun(t *testing.T) {
	t.Parallel()
	wf := parse(t, `
sandbox: {image: "img:1", retention: 5m}
steps:
  - {id: a, type: agent, agent: one}
  - {id: b, type: agent, agent: two, sandbox: mine, input: {x: "${ input.n }"}}
  - {id: c, type: agent, agent: three, sandbox: isolated}`)
	var got []string
	var inputs []map[string]any
	var run session.Run
	res, err := workflow.NewEngine(nil, agents(func(ctx context.Context, name string, input map[string]any) (workflow.AgentOutput, error) {
		run, _ = session.RunFromContext(ctx)
		base, _ := session.BaseFromContext(ctx)
		got = append(got, strings.Join([]string{name, session.SessionNameFromContext(ctx), base.Image, base.Retention.String()}, " "))
		inputs = append(inputs, input)
		input["n"] = "changed" // an agent may modify the input
		return workflow.AgentOutput{}, nil
	}), nil).Run(t.Context(), wf, map[string]any{"n": 1})
	checktest.Must(t, err)
	want := []string{"one default img:1 5m0s", "two mine img:1 5m0s", "three isolated.c.1 img:1 5m0s"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if diff := cmp.Diff([]map[string]any{{"n": "changed"}, {"x": int64(1), "n": "changed"}, {"n": "changed"}}, inputs); diff != "" {
		t.Errorf("inputs (-want +got)\n%s", diff)
	}
	if run != (session.Run{Namespace: record.NamespaceWorkflow, ID: res.RunID}) || !strings.HasPrefix(res.RunID, "run_") {
		t.Errorf("run %v, result %s", run, res.RunID)
	}
}

func TestInputSchema(t *testing.T) {
	t.Parallel()
	wf := parse(t, `
input:
  type: object
  required: [repo]
  properties:
    repo: {type: string, minLength: 1}
    depth: {type: integer, default: 3}
steps: [{id: a, type: end, output: "${ input }"}]`)
	engine := workflow.NewEngine(nil, nil, nil)
	res, err := engine.Run(t.Context(), wf, map[string]any{"repo": "x"})
	checktest.Must(t, err)
	if diff := cmp.Diff(map[string]any{"repo": "x", "depth": int64(3)}, res.Output); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	for name, input := range map[string]map[string]any{
		"missing": nil, "wrong type": {"repo": 3}, "wrong other": {"repo": "x", "depth": "deep"}, "too large": {"repo": strings.Repeat("x", 5<<20)},
	} {
		if res, err := engine.Run(t.Context(), wf, input); !errors.Is(err, workflow.ErrInvalidInput) || res != nil {
			t.Errorf("%s: Run = %v, %v", name, res, err)
		}
	}
}

func TestJournal(t *testing.T) {
	t.Parallel()
	wf := parse(t, `
  - {id: a, type: agent, agent: flaky, retry: {max_attempts: 2, backoff: 0s}}
  - {id: b, type: set, vars: {x: "${ steps.a.output }"}, next: d}
  - {id: c, type: end}
  - {id: d, type: set, if: "false", vars: {y: 1}}
  - {id: e, type: parallel, branches: [{id: one, steps: [{id: f, type: fail, message: no}]}], on_error: c}
`)
	journal := &cutJournal{room: -1}
	engine := workflow.NewEngine(nil, script(map[string][]any{"flaky": {errors.New("once"), "fine"}}), &workflow.Options{Journal: journal})
	res, err := engine.Run(t.Context(), wf, map[string]any{"in": true})
	checktest.Must(t, err)
	var got []string
	for i, e := range journal.entries(t) {
		if e.Seq != int64(i+1) || e.RunID != res.RunID || e.Time.IsZero() {
			t.Errorf("entry %d: %+v", i, e)
		}
		line := fmt.Sprintf("%s %s#%d.%d %s", e.Kind, e.Path, e.Visit, e.Attempt, e.Status)
		if e.Error != nil {
			line += " " + string(e.Error.Code)
		}
		got = append(got, fmt.Sprintf("%s %v %v %v ->%s", line, e.Output, e.Vars, e.Retry, e.Next))
	}
	want := []string{
		"run_started #0.0  <nil> map[] false ->",
		"step_started a#1.1 running <nil> map[] false ->",
		"step_finished a#1.1 failed agent_failed <nil> map[] true ->",
		"step_started a#1.2 running <nil> map[] false ->",
		"step_finished a#1.2 succeeded fine map[] false ->b",
		"step_started b#1.1 running <nil> map[] false ->",
		"step_finished b#1.1 succeeded map[x:fine] map[x:fine] false ->d",
		"step_finished d#0.0 skipped <nil> map[] false ->e",
		"step_started e#1.1 running <nil> map[] false ->",
		"step_started e.one/f#1.1 running <nil> map[] false ->",
		"step_finished e.one/f#1.1 failed failed <nil> map[] false ->",
		"step_finished e#1.1 failed branches map[] map[] false ->c",
		"step_started c#1.1 running <nil> map[] false ->",
		"step_finished c#1.1 succeeded <nil> map[] false ->",
		"run_finished #0.0  fine map[] false ->",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// TestJournalFails verifies that all actions are recorded: if the first entry fails, the run fails; if a later entry
// fails, the run is interrupted.
func TestJournalFails(t *testing.T) {
	t.Parallel()
	wf := parse(t, `
  - {id: a, type: agent, agent: one}
  - {id: b, type: agent, agent: two, retry: {max_attempts: 5, backoff: 0s}, on_error: continue}`)
	for way, fail := range map[string]func() error{"error": func() error { return errors.New("disk full") }, "panic": func() error { panic("journal") }} {
		for at := 1; at <= 6; at++ {
			calls := 0
			engine := workflow.NewEngine(nil, agents(func(context.Context, string, map[string]any) (workflow.AgentOutput, error) {
				calls++
				return workflow.AgentOutput{}, nil
			}), &workflow.Options{Journal: &failingJournal{at: at, fail: fail}})
			res, err := engine.Run(t.Context(), wf, nil)
			if !errors.Is(err, workflow.ErrJournal) || (res.Unfinished != nil) != (at > 1) {
				t.Errorf("%s at entry %d: %+v, %v", way, at, res, err)
			}
			if want := []int{0, 0, 0, 1, 1, 2, 2}[at]; calls != want {
				t.Errorf("%s at entry %d: %d agents ran, want %d", way, at, calls, want)
			}
		}
	}
}

// failingJournal fails at the specified entry.
type failingJournal struct {
	at, n int
	fail  func() error
}

func (j *failingJournal) Append(context.Context, workflow.Entry) error {
	if j.n++; j.n == j.at {
		return j.fail()
	}
	return nil
}

// TestUsageIsKept verifies that the journal contains the cost and the usage of an agent's model, even for a failed
// attempt.
func TestUsageIsKept(t *testing.T) {
	t.Parallel()
	wf := parse(t, `
steps:
  - {id: a, type: agent, agent: coder, retry: {max_attempts: 2, backoff: 0s}}
  - {id: b, type: end, output: {}}`)
	costs, journal := []float64{.5, .25}, &cutJournal{room: -1}
	calls := 0
	coder := agents(func(context.Context, string, map[string]any) (workflow.AgentOutput, error) {
		calls++
		out := workflow.AgentOutput{Text: "done", CostUSD: &costs[calls-1]}
		out.Usage = &workflow.Usage{Model: "m", In: int64(calls), Turns: 1}
		if calls == 1 {
			return out, errors.New("not this time")
		}
		return out, nil
	})
	stops(t, workflow.NewEngine(nil, coder, &workflow.Options{Journal: journal}), wf, nil)
	var kept []float64
	for _, e := range journal.entries(t) {
		if e.CostUSD != nil {
			kept = append(kept, *e.CostUSD)
			if want := (workflow.Usage{Model: "m", In: int64(len(kept)), Turns: 1}); e.Usage == nil || *e.Usage != want {
				t.Errorf("usage %+v, want %+v", e.Usage, want)
			}
		}
	}
	if !slices.Equal(kept, costs) {
		t.Errorf("kept %v, want %v", kept, costs)
	}
}
