package workflow_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/workflow"
)

// work returns agents that take the duration d, unless they are canceled.
func work(d time.Duration) agents {
	return func(ctx context.Context, name string, _ map[string]any) (workflow.AgentOutput, error) {
		select {
		case <-time.After(d):
			return workflow.AgentOutput{Text: name}, nil
		case <-ctx.Done():
			return workflow.AgentOutput{}, ctx.Err()
		}
	}
}

func TestRetryBacksOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wf := parse(t, `
steps: [{id: a, type: agent, agent: x, retry: {max_attempts: 12, backoff: 2s}}]`)
		var at []time.Duration
		started := time.Now()
		rec := &recorder{}
		_, err := workflow.NewEngine(nil, agents(func(context.Context, string, map[string]any) (workflow.AgentOutput, error) {
			at = append(at, time.Since(started))
			return workflow.AgentOutput{}, errors.New("no")
		}), &workflow.Options{OnEvent: rec.add}).Run(t.Context(), wf, nil)
		if err == nil {
			t.Fatal("the run succeeded")
		}
		var want []time.Duration
		var sum time.Duration
		for i, wait := 0, 2*time.Second; i < 12; i++ {
			want = append(want, sum)
			sum += wait
			wait = min(2*wait, 5*time.Minute)
		}
		if diff := cmp.Diff(want, at); diff != "" {
			t.Errorf("attempts at (-want +got)\n%s", diff)
		}
		if n := len(rec.trail()); n != 12 {
			t.Errorf("%d attempts were reported", n)
		}
	})
}

func TestRetryIsNotForEverything(t *testing.T) {
	t.Parallel()
	for _, src := range []string{
		`{id: a, type: fail, message: no, retry: {max_attempts: 3}}`,
		`{id: a, type: set, vars: {x: "${ input.x }"}, retry: {max_attempts: 3}}`,
		`{id: a, type: switch, expression: "'x'", transitions: [{condition: y, next: e}], retry: {max_attempts: 3}}, {id: e, type: end}`,
	} {
		res, err := workflow.NewEngine(nil, nil, nil).Run(t.Context(), parse(t, "steps: ["+src+"]"), nil)
		if err == nil || res.Steps != 1 {
			t.Errorf("%s: %d attempts, %v", src, res.Steps, err)
		}
	}
}

// TestTimeouts verifies the timeouts of runs whose agents take an hour or a second.
func TestTimeouts(t *testing.T) {
	for name, tt := range map[string]struct {
		src      string
		work     time.Duration // duration of an agent
		deadline time.Duration // deadline of the caller
		output   any
		err      string
		took     time.Duration
	}{
		"of a step": {src: `
  - {id: a, type: agent, agent: slow, timeout: 3s, retry: {max_attempts: 2, backoff: 1s}, on_error: b}
  - {id: b, type: end, output: "${ steps.a.error }"}`,
			work: time.Hour, took: 7 * time.Second, output: map[string]any{"code": "timeout", "message": "timed out after 3s"}},
		// The timeout ends the inner steps and makes the container fail, not the run.
		"of a container": {src: `
  - id: p
    type: parallel
    timeout: 10s
    on_error: e
    branches:
      - {id: one, steps: [{id: a, type: agent, agent: x, retry: {max_attempts: 5}, on_error: continue}]}
      - {id: two, steps: [{id: b, type: agent, agent: x, timeout: 4s, on_error: continue}, {id: c, type: agent, agent: x}]}
  - {id: e, type: end, output: "${ steps.p.error.code }"}`,
			work: time.Hour, took: 10 * time.Second, output: "timeout"},
		"of the run, in the second attempt": {src: `
timeout: 4s
steps:
  - {id: a, type: agent, agent: slow, retry: {max_attempts: 9, backoff: 1s}, timeout: 2s, on_error: continue}
  - {id: b, type: end}`,
			work: time.Hour, took: 4 * time.Second, err: "step a: the run timed out after 4s"},
		"of the caller": {src: `
  - {id: a, type: agent, agent: x, on_error: continue}`,
			work: time.Hour, deadline: 2 * time.Second, took: 2 * time.Second, err: "step a: the caller's deadline has passed"},
		"none: 100 items, 5 at once": {src: `
max_steps: 1000
steps:
  - {id: f, type: for_each, items: input.list, max_concurrency: 5, steps: [{id: a, type: agent, agent: x}]}
  - {id: e, type: end, output: "${ size(steps.f.output) }"}`,
			work: time.Second, took: 20 * time.Second, output: int64(100)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				if tt.deadline > 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, tt.deadline)
					defer cancel()
				}
				started := time.Now()
				res, err := workflow.NewEngine(nil, work(tt.work), nil).Run(ctx, parse(t, tt.src), map[string]any{"list": make([]any, 100)})
				if took := time.Since(started); took != tt.took {
					t.Errorf("took %s, want %s", took, tt.took)
				}
				if tt.err != "" && (!errors.Is(err, context.DeadlineExceeded) || res.Outcome != workflow.TimedOut || err.Error() != tt.err) || tt.err == "" && err != nil {
					t.Errorf("Run = %+v, %v, want %q", res, err, tt.err)
				}
				if diff := cmp.Diff(tt.output, res.Output); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			})
		})
	}
}

func TestCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, src := range map[string]string{
			"in an agent":  `{id: a, type: agent, agent: x, on_error: continue}`,
			"in a backoff": `{id: a, type: agent, agent: x, timeout: 1s, retry: {max_attempts: 9, backoff: 5m}, on_error: continue}`,
			"in branches":  `{id: a, type: parallel, on_error: continue, branches: [{id: one, steps: [{id: x, type: agent, agent: x}]}, {id: two, steps: [{id: y, type: agent, agent: x}]}]}`,
			"in items":     `{id: a, type: for_each, items: [1, 2, 3], fail_fast: false, on_error: continue, steps: [{id: x, type: agent, agent: x}]}`,
		} {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(3*time.Second, cancel)
			started := time.Now()
			res, err := workflow.NewEngine(nil, work(time.Hour), nil).Run(ctx, parse(t, "steps: ["+src+", {id: z, type: end}]"), nil)
			if !errors.Is(err, context.Canceled) || res.Outcome != workflow.Cancelled {
				t.Errorf("%s: Run = %+v, %v", name, res, err)
			}
			if took := time.Since(started); took != 3*time.Second {
				t.Errorf("%s: took %s", name, took)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		res, err := workflow.NewEngine(nil, work(time.Hour), nil).Run(ctx, parse(t, "vars: {x: \"${ 1 + 1 }\"}\nsteps: [{id: z, type: end}]"), nil)
		if !errors.Is(err, context.Canceled) || res.Outcome != workflow.Cancelled || res.Steps != 0 {
			t.Errorf("before the start: Run = %+v, %v", res, err)
		}
	})
}

// TestStubbornAgent verifies that an agent ignoring the end of its context is abandoned.
func TestStubbornAgent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wf := parse(t, "steps: [{id: a, type: agent, agent: x, timeout: 1s}]")
		started := time.Now()
		_, err := workflow.NewEngine(nil, agents(func(context.Context, string, map[string]any) (workflow.AgentOutput, error) {
			time.Sleep(time.Hour)
			return workflow.AgentOutput{}, nil
		}), &workflow.Options{StopGrace: 4 * time.Second}).Run(t.Context(), wf, nil)
		if err == nil || err.Error() != "step a: timed out after 1s" {
			t.Errorf("Run = %v", err)
		}
		if took := time.Since(started); took != 5*time.Second {
			t.Errorf("took %s", took)
		}
		time.Sleep(2 * time.Hour) // until the agent's goroutine ends
	})
}

// TestFailFast verifies that the failure of one branch cancels the others at once, and that the canceled branches do
// not count as failures.
func TestFailFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		wf := parse(t, `
  - id: p
    type: parallel
    branches:
      - {id: one, steps: [{id: a, type: agent, agent: slow, on_error: continue}, {id: never, type: agent, agent: slow}]}
      - {id: two, steps: [{id: b, type: agent, agent: bad}]}`)
		rec := &recorder{}
		started := time.Now()
		_, err := workflow.NewEngine(nil, agents(func(ctx context.Context, name string, _ map[string]any) (workflow.AgentOutput, error) {
			if name == "bad" {
				time.Sleep(time.Second)
				return workflow.AgentOutput{}, errors.New("broken")
			}
			<-ctx.Done()
			return workflow.AgentOutput{}, ctx.Err()
		}), &workflow.Options{OnEvent: rec.add}).Run(t.Context(), wf, nil)
		if err == nil || err.Error() != "step p: branch two failed: agent bad: broken" {
			t.Errorf("Run = %v", err)
		}
		if diff := cmp.Diff([]string{"p.two/b:failed", "p.one/a:failed", "p:failed"}, rec.trail()); diff != "" {
			t.Errorf("trail (-want +got)\n%s", diff)
		}
		if took := time.Since(started); took != time.Second {
			t.Errorf("took %s", took)
		}
	})
}
