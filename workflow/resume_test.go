package workflow_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/workflow"
)

// everything contains all places of an interruption: loops, retries, branches, items, skipped and failing steps.
const everything = `
id: everything
max_steps: 1000
input: {type: object, properties: {ratio: {type: number}}}
vars: {round: 0}
steps:
  - {id: begin, type: agent, agent: begin, input: {r: "${ input.ratio }"}}
  - {id: flaky, type: agent, agent: flaky, retry: {max_attempts: 3, backoff: 0s}}
  - {id: never, type: agent, agent: never, if: "steps.begin.output.n > 5"}
  - {id: again, type: set, vars: {round: "${ vars.round + 1 }"}}
  - id: each
    type: for_each
    items: "${ [10, 20, 30] }"
    as: it
    max_concurrency: 2
    steps:
      - {id: work, type: agent, agent: work, input: {it: "${ it }", round: "${ vars.round }"}}
      - {id: twice, type: set, vars: {double: "${ steps.work.output.n * 2 }"}}
    output: "${ vars.double }"
  - id: both
    type: parallel
    fail_fast: false
    branches:
      - id: left
        steps: [{id: l, type: agent, agent: left}]
        output: "${ steps.l.output }"
      - id: right
        steps: [{id: r, type: agent, agent: right}, {id: bad, type: fail, message: "right is wrong"}]
    on_error: repair
  - {id: repair, type: agent, agent: repair, input: {why: "${ steps.both.error.code }"}}
  - id: more
    type: switch
    max_visits: 5
    cases: [{when: "vars.round < 3", next: again}]
    default: done
  - id: done
    type: end
    output:
      round: "${ vars.round }"
      visits: "${ steps.each.visits }"
      each: "${ steps.each.output }"
      flaky: "${ steps.flaky.output }"
      never: "${ steps.never.status }"
      half: "${ input.ratio / 2.0 }"
      both: "${ steps.both.status }"
`

// later is a loop whose second iteration is retried, because the agent fails at an item. It needs all of max_steps.
const later = `
max_steps: 18
vars: {round: 0}
steps:
  - {id: again, type: set, vars: {round: "${ vars.round + 1 }"}}
  - id: each
    type: for_each
    items: "${ [1, 2, 3, 4] }"
    as: it
    max_concurrency: 1
    retry: {max_attempts: 2, backoff: 0s}
    steps:
      - {id: work, type: agent, agent: work, input: {it: "${ it }", round: "${ vars.round }"}}
  - {id: more, type: switch, max_visits: 5, cases: [{when: "vars.round < 2", next: again}], default: done}
  - {id: done, type: end, output: {each: "${ steps.each.output }"}}
`

// resumeAgents are fake agents that record their calls and the calling steps. Some calls fail at first, counted over
// all processes.
type resumeAgents struct {
	mu    sync.Mutex
	calls map[string]int
	fails map[string]int
}

func newResumeAgents() *resumeAgents {
	return &resumeAgents{calls: map[string]int{}, fails: map[string]int{"flaky": 2, "work2 2": 1}}
}

func (a *resumeAgents) RunAgent(_ context.Context, name string, input map[string]any) (workflow.AgentOutput, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	call, n := name, int64(1)
	if it, ok := input["it"].(int64); ok {
		call, n = fmt.Sprint(name, it, " ", input["round"]), it
	}
	a.calls[call]++
	if a.fails[call] > 0 {
		a.fails[call]--
		return workflow.AgentOutput{}, errors.New("not yet")
	}
	return workflow.AgentOutput{Output: map[string]any{"n": n, "call": call}}, nil
}

// cutJournal stores entries like a file. After room entries it fails, as if the process died.
type cutJournal struct {
	mu    sync.Mutex
	lines [][]byte
	room  int
}

var errCut = errors.New("the process died")

func (j *cutJournal) Append(_ context.Context, e workflow.Entry) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.room == 0 {
		return errCut
	}
	j.room--
	line, err := json.Marshal(e)
	j.lines = append(j.lines, line)
	return err
}

func (j *cutJournal) entries(t *testing.T) []workflow.Entry {
	t.Helper()
	list := make([]workflow.Entry, len(j.lines))
	for i, line := range j.lines {
		checktest.Must(t, json.Unmarshal(line, &list[i]))
	}
	return list
}

// TestResumeAnywhere interrupts a run after each of its journal entries and resumes it. It verifies that the result is
// the same and that no finished step is repeated. A failure inside an earlier attempt of a loop must not be mistaken
// for the result of the next attempt.
func TestResumeAnywhere(t *testing.T) {
	t.Parallel()
	for name, src := range map[string]string{"everything": everything, "later": later} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			wf, input := parse(t, src), map[string]any{"ratio": 1.5}
			whole, full := newResumeAgents(), &cutJournal{room: -1}
			want, err := workflow.NewEngine(nil, whole, &workflow.Options{Journal: full}).Run(t.Context(), wf, input)
			checktest.Must(t, err)
			if name == "everything" {
				got, _ := want.Output.(map[string]any)
				if got["round"] != int64(3) || whole.calls["flaky"] != 3 || got["half"] != 0.75 || got["both"] != "failed" ||
					whole.calls["work20 2"] != 1 || whole.calls["never"] != 0 || whole.calls["repair"] != 3 {
					t.Fatalf("the run itself: %v, %v", got, whole.calls)
				}
			}
			for cut := 1; cut < len(full.lines); cut++ {
				resumeAt(t, wf, input, cut, whole, want)
			}
		})
	}
}

// resumeAt interrupts a run after a number of entries, resumes it, and compares it with a run without interruption.
func resumeAt(t *testing.T, wf *workflow.Workflow, input map[string]any, cut int, whole *resumeAgents, want *workflow.Result) {
	t.Helper()
	var events []workflow.Event
	agents, journal := newResumeAgents(), &cutJournal{room: cut}
	engine := workflow.NewEngine(nil, agents, &workflow.Options{Journal: journal, OnEvent: func(ev workflow.Event) { events = append(events, ev) }})
	begun, err := engine.Run(t.Context(), wf, input)
	if !errors.Is(err, workflow.ErrJournal) {
		t.Fatalf("cut %d: the first process: %v", cut, err)
	}
	before, first := journal.entries(t), maps.Clone(agents.calls)
	events, journal.room = nil, -1
	got, err := engine.Resume(t.Context(), wf, before)
	if err != nil {
		t.Fatalf("cut %d, after %s: %v", cut, journal.lines[cut-1], err)
	}
	if diff := cmp.Diff(want.Output, got.Output); diff != "" {
		t.Errorf("cut %d: output (-want +got)\n%s", cut, diff)
	}
	if got.RunID != before[0].RunID || !got.Started.Equal(begun.Started) || got.Steps > want.Steps {
		t.Errorf("cut %d: run %s of %v with %d steps, want %s of %v with %d at most", cut, got.RunID, got.Started, got.Steps, before[0].RunID, begun.Started, want.Steps)
	}
	repeatable, over, repeated := running(before), 0, 0
	for call, n := range agents.calls {
		over += n - whole.calls[call]
		if n != whole.calls[call] && first[call] == 0 {
			t.Errorf("cut %d: %s was run %d times by the second process, want %d", cut, call, n, whole.calls[call])
		}
	}
	if over > repeatable {
		t.Errorf("cut %d: %d agents were run again, %d attempts were unfinished: %v", cut, over, repeatable, agents.calls)
	}
	for _, ev := range events {
		if ev.Repeats {
			repeated++
		}
	}
	if events[0].Kind != workflow.EventRunResumed || repeated != repeatable {
		t.Errorf("cut %d: first event %s, %d steps said to be repeated, %d were unfinished", cut, events[0].Kind, repeated, repeatable)
	}
	checkJournal(t, cut, journal.entries(t))
}

// running returns the number of attempts that have started and not ended.
func running(entries []workflow.Entry) int {
	open := map[string]bool{}
	for _, e := range entries {
		switch e.Kind {
		case workflow.EventStepStarted:
			open[e.Path] = true
		case workflow.EventStepFinished:
			delete(open, e.Path)
		}
	}
	return len(open)
}

// checkJournal verifies that the journal of a resumed run is consistent and has the same step results as without an
// interruption.
func checkJournal(t *testing.T, cut int, entries []workflow.Entry) {
	t.Helper()
	resumed := 0
	for i, e := range entries {
		if e.Seq != int64(i+1) || e.RunID != entries[0].RunID {
			t.Fatalf("cut %d: entry %d is number %d of %s", cut, i+1, e.Seq, e.RunID)
		}
		if e.Kind == workflow.EventRunResumed {
			resumed++
		}
	}
	if last := entries[len(entries)-1]; resumed != 1 || last.Kind != workflow.EventRunFinished || last.Outcome != workflow.Succeeded {
		t.Errorf("cut %d: resumed %d times, ends with %s %s", cut, resumed, last.Kind, last.Outcome)
	}
}

// TestResumeNumbers verifies that the outputs of finished steps keep their types.
func TestResumeNumbers(t *testing.T) {
	t.Parallel()
	wf := parse(t, `
  - {id: a, type: set, vars: {d: "${ 7.0 }", two: "${ 2.0 }", small: "${ -0.5 }", zero: "${ -0.0 }", big: "${ 1e300 }", n: "${ 7 }", list: "${ [1.0, 1] }"}}
  - {id: b, type: set, vars: {x: 1}}
  - id: c
    type: end
    output: {q: "${ vars.d / vars.two }", r: "${ vars.n / 2 }", same: "${ vars.list[0] + 1.0 + vars.small + vars.big * vars.zero }", all: "${ vars }"}
`)
	want, err := workflow.NewEngine(nil, nil, nil).Run(t.Context(), wf, nil)
	checktest.Must(t, err)
	if got := want.Output.(map[string]any); got["q"] != 3.5 || got["r"] != int64(3) {
		t.Fatalf("the run itself: %v", got)
	}
	journal := &cutJournal{room: 4}
	stops(t, workflow.NewEngine(nil, nil, &workflow.Options{Journal: journal}), wf, workflow.ErrJournal)
	journal.room = -1
	got, err := workflow.NewEngine(nil, nil, &workflow.Options{Journal: journal}).Resume(t.Context(), wf, journal.entries(t))
	checktest.Must(t, err)
	if diff := cmp.Diff(want.Output, got.Output); diff != "" {
		t.Errorf("output (-want +got)\n%s", diff)
	}
}

// TestResumeTwice verifies that the second process can also be interrupted.
func TestResumeTwice(t *testing.T) {
	t.Parallel()
	wf := parse(t, everything)
	agents, journal := newResumeAgents(), &cutJournal{room: 4}
	engine := workflow.NewEngine(nil, agents, &workflow.Options{Journal: journal})
	_, err := engine.Run(t.Context(), wf, map[string]any{"ratio": 1.5})
	resumes := 0
	for ; errors.Is(err, workflow.ErrJournal); resumes++ {
		journal.room = 5
		_, err = engine.Resume(t.Context(), wf, journal.entries(t))
	}
	if err != nil || resumes < 5 {
		t.Errorf("after %d resumes: %v", resumes, err)
	}
	for _, once := range []string{"begin", "left"} {
		if n := agents.calls[once]; n == 0 {
			t.Errorf("%s never ran", once)
		}
	}
}

func TestResumeRefuses(t *testing.T) {
	t.Parallel()
	wf := parse(t, "steps: [{id: a, type: agent, agent: x}, {id: b, type: end}]")
	journal := &cutJournal{room: -1}
	engine := workflow.NewEngine(nil, newResumeAgents(), &workflow.Options{Journal: journal})
	stops(t, engine, wf, nil)
	all := journal.entries(t)
	changed := parse(t, "steps: [{id: a, type: agent, agent: y}, {id: b, type: end}]")
	strange := slices.Clone(all[:3])
	strange[2].Next = "nowhere"
	gap := append(slices.Clone(all[:2]), all[3])
	for name, test := range map[string]struct {
		wf      *workflow.Workflow
		entries []workflow.Entry
		want    error
	}{
		"nothing":           {wf, nil, workflow.ErrBadJournal},
		"no beginning":      {wf, all[1:], workflow.ErrBadJournal},
		"a gap":             {wf, gap, workflow.ErrBadJournal},
		"finished":          {wf, all, workflow.ErrFinished},
		"changed file":      {changed, all[:3], workflow.ErrChanged},
		"a way that is not": {wf, strange, workflow.ErrBadJournal},
	} {
		if _, err := engine.Resume(t.Context(), test.wf, test.entries); !errors.Is(err, test.want) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

// TestResumeAfterFailure verifies that a run ends again with the same error and outcome if the process died between the
// end of the last step and the end of the run.
func TestResumeAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for outcome, test := range map[workflow.Outcome]struct {
			step string
			is   error
		}{
			workflow.Failed:    {`{id: a, type: fail, message: "it is broken"}`, nil},
			workflow.Cancelled: {"{id: a, type: agent, agent: cancel}", context.Canceled},
			workflow.TimedOut: {"{id: a, type: for_each, items: [1], steps: [{id: b, type: agent, agent: wait}]}",
				context.DeadlineExceeded},
		} {
			wf := parse(t, "id: w\ntimeout: 1s\nsteps: ["+test.step+"]")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			journal := &cutJournal{room: -1}
			wait := func(ctx context.Context, name string, _ map[string]any) (workflow.AgentOutput, error) {
				if name == "cancel" {
					cancel()
				}
				<-ctx.Done()
				return workflow.AgentOutput{}, ctx.Err()
			}
			engine := workflow.NewEngine(nil, agents(wait), &workflow.Options{Journal: journal})
			_, want := engine.Run(ctx, wf, nil)
			entries := journal.entries(t)
			got, err := engine.Resume(t.Context(), wf, entries[:len(entries)-1])
			wraps := test.is == nil || errors.Is(err, test.is)
			if got.Outcome != outcome || err == nil || err.Error() != want.Error() || !wraps {
				t.Errorf("got %+v, %v; want %s, %v", got, err, outcome, want)
			}
		}
	})
}

// TestResumeCanceledBranch verifies that a run ends in the same way if the process died after a failed branch or the
// timeout of a step had canceled the steps inside, but before the end of the outer step.
func TestResumeCanceledBranch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wait := func(ctx context.Context, name string, input map[string]any) (workflow.AgentOutput, error) {
			return work(map[string]time.Duration{"hour": time.Hour, "second": time.Second}[name])(ctx, name, input)
		}
		for _, settings := range []string{"on_error: e", "on_error: e, timeout: 10ms"} {
			wf := parse(t, "steps: [{id: p, type: parallel, "+settings+`, branches: [
  {id: a, steps: [{id: w, type: agent, agent: hour}]},
  {id: b, steps: [{id: s, type: agent, agent: second}, {id: f, type: fail, message: no}]}]},
{id: e, type: end, output: "${ steps.p.error.code }"}]`)
			journal := &cutJournal{room: -1}
			engine := workflow.NewEngine(nil, agents(wait), &workflow.Options{Journal: journal})
			want, err := engine.Run(t.Context(), wf, nil)
			checktest.Must(t, err)
			entries := journal.entries(t)
			end := slices.IndexFunc(entries, func(e workflow.Entry) bool { return e.Path == "p" && e.Status == workflow.StatusFailed })
			got, err := engine.Resume(t.Context(), wf, entries[:end])
			if err != nil || got.Output != want.Output {
				t.Errorf("%s: %v, %v; want %v", settings, got.Output, err, want.Output)
			}
		}
	})
}
