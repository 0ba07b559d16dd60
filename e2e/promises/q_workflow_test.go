package promises

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow"
)

func parse(t *testing.T, src string) *workflow.Workflow {
	t.Helper()
	wf, err := workflow.Parse("w.yaml", []byte(strings.ReplaceAll(strings.TrimLeft(src, "\n"), "IMAGE", debianImage)), nil)
	must(t, err)
	return wf
}

// TestQ3Caps runs workflows that would never end or never stop growing. Each ends with a typed error, and its sandboxes
// with it.
func TestQ3Caps(t *testing.T) {
	t.Parallel()
	million := make([]any, 1_000_000)
	for name, c := range map[string]struct {
		src   string
		input map[string]any
		want  error
		boxes int // most sandboxes at a time
	}{
		"infinite loop": {`
id: w
max_steps: 25
sandbox: {image: "IMAGE"}
steps:
  - {id: a, type: exec, command: "echo x >> f"}
  - {id: b, type: switch, cases: [{when: "false", next: c}], default: a}
  - {id: c, type: end}`, nil, workflow.ErrLimit, 1},
		"loop over errors": {`
id: w
max_steps: 10
sandbox: {image: "IMAGE"}
steps:
  - {id: a, type: exec, command: "exit 1", on_error: a, retry: {max_attempts: 3, backoff: 0s}}
  - {id: b, type: end}`, nil, workflow.ErrLimit, 1},
		"a million items": {`
id: w
max_steps: 1000000
sandbox: {image: "IMAGE"}
steps:
  - {id: a, type: exec, command: "true"}
  - {id: f, type: for_each, items: input.list, sandbox: isolated, max_concurrency: 64, steps: [{id: b, type: exec, command: "true"}]}`,
			map[string]any{"list": million}, workflow.ErrInvalidInput, 0},
		"ten million items": {`
id: w
max_steps: 1000000
sandbox: {image: "IMAGE"}
steps:
  - {id: a, type: exec, command: "true"}
  - {id: f, type: for_each, items: "${ input.list.map(x, input.list) }", steps: [{id: g, type: for_each, items: item, steps: [{id: b, type: exec, command: "true"}]}]}`,
			map[string]any{"list": million[:3000]}, workflow.ErrLimit, 1},
		"more items than steps": {`
id: w
max_steps: 100
sandbox: {image: "IMAGE"}
steps:
  - {id: a, type: exec, command: "true"}
  - {id: f, type: for_each, items: input.list, max_concurrency: 64, steps: [{id: b, type: exec, command: "true"}]}`,
			map[string]any{"list": million[:9000]}, workflow.ErrLimit, 1},
		"more sandboxes than places": {`
id: w
max_steps: 100
sandbox: {image: "IMAGE"}
steps:
  - {id: f, type: for_each, items: input.list, sandbox: isolated, max_concurrency: 20, fail_fast: false, steps: [{id: b, type: exec, command: "sleep 1"}]}`,
			map[string]any{"list": million[:20]}, backend.ErrCapacity, 3},
		"endless output": {`
id: w
timeout: 2s
sandbox: {image: "IMAGE"}
steps:
  - {id: a, type: exec, command: "yes"}`, nil, context.DeadlineExceeded, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newManager(t, w.driver, session.Options{MaxSandboxes: 3})
			most := 0
			opts := &workflow.Options{OnEvent: func(workflow.Event) {
				if list, err := w.driver.List(context.Background(), backend.Filter{Instance: m.Instance()}); err == nil {
					most = max(most, len(list))
				}
			}}
			res, err := workflow.NewEngine(m, nil, opts).Run(t.Context(), parse(t, c.src), c.input)
			if !errors.Is(err, c.want) && !capacityFailed(err, c.want) {
				t.Errorf("Run: %v, want %v", err, c.want)
			}
			if res != nil && (res.Outcome == workflow.Succeeded || res.Cleanup != nil) {
				t.Errorf("%+v", res)
			}
			if most > c.boxes {
				t.Errorf("%d sandboxes at a time", most)
			}
			nothingLeft(t, m.Instance()) // also before the manager ends
		})
	}
}

// capacityFailed tells whether the items of a for_each failed for lack of places.
func capacityFailed(err, want error) bool {
	var e *workflow.Error
	if !errors.Is(want, backend.ErrCapacity) || !errors.As(err, &e) {
		return false
	}
	for _, f := range e.Failed {
		if f.Code == "capacity" {
			return true
		}
	}
	return false
}

// TestQ3Recursion: workflows that run themselves, straight or in a circle, by way of their agents.
func TestQ3Recursion(t *testing.T) {
	t.Parallel()
	for name, next := range map[string]map[string]string{
		"itself": {"a": "a"}, "each other": {"a": "b", "b": "a"}, "a circle": {"a": "b", "b": "c", "c": "a"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newManager(t, w.driver, session.Options{})
			wfs := map[string]*workflow.Workflow{}
			for id, to := range next {
				wfs[id] = parse(t, fmt.Sprintf("id: %s\nsandbox: {image: \"IMAGE\"}\nsteps: [{id: x, type: exec, command: 'true'}, {id: y, type: agent, agent: %s}]", id, to))
			}
			var runs atomic.Int64
			var engine *workflow.Engine
			engine = workflow.NewEngine(m, named(func(ctx context.Context, name string) error {
				runs.Add(1)
				_, err := engine.Run(ctx, wfs[name], nil)
				return err
			}), nil)
			if _, err := engine.Run(t.Context(), wfs["a"], nil); !errors.Is(err, workflow.ErrRecursion) || runs.Load() != int64(len(next)) {
				t.Errorf("Run: %v after %d runs", err, runs.Load())
			}
			nothingLeft(t, m.Instance())
		})
	}
	t.Run("without end", func(t *testing.T) {
		t.Parallel()
		m := newManager(t, w.driver, session.Options{})
		var runs atomic.Int64
		var engine *workflow.Engine
		next := func() *workflow.Workflow {
			return parse(t, fmt.Sprintf("id: w%d\nsandbox: {image: \"IMAGE\"}\nsteps: [{id: x, type: exec, command: 'true'}, {id: y, type: agent, agent: deeper}]", runs.Add(1)))
		}
		engine = workflow.NewEngine(m, named(func(ctx context.Context, _ string) error {
			_, err := engine.Run(ctx, next(), nil)
			return err
		}), nil)
		if _, err := engine.Run(t.Context(), next(), nil); !errors.Is(err, workflow.ErrRecursion) || runs.Load() > 20 {
			t.Errorf("Run: %v after %d runs", err, runs.Load())
		}
		nothingLeft(t, m.Instance())
	})
}

type named func(ctx context.Context, name string) error

func (f named) RunAgent(ctx context.Context, name string, _ map[string]any) (workflow.AgentOutput, error) {
	return workflow.AgentOutput{}, f(ctx, name)
}

// TestQ3LoadTime: what can be known before a run is refused before a run.
func TestQ3LoadTime(t *testing.T) {
	t.Parallel()
	nested := "{id: x, type: set, vars: {x: 1}}"
	for i := range 12 {
		nested = fmt.Sprintf("{id: f%d, type: for_each, items: [1, 2], steps: [%s]}", i, nested)
	}
	var branches, steps strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&branches, "{id: b%d, steps: [{id: s%d, type: set, vars: {x: 1}}]},", i, i)
		fmt.Fprintf(&steps, "  - {id: s%d, type: set, vars: {x: 1}}\n", i)
	}
	dir := t.TempDir()
	state := w.stateDir(t, w.instance)
	for name, src := range map[string]string{
		"loop without a way out": "id: w\nsteps:\n  - {id: a, type: set, vars: {x: 1}}\n  - {id: b, type: set, vars: {x: 2}, next: a}\n",
		"step that is its own":   "id: w\nsteps:\n  - {id: a, type: set, vars: {x: 1}, next: a}\n",
		"nested too deep":        "id: w\nsteps: [" + nested + "]\n",
		"too many branches":      "id: w\nsteps: [{id: p, type: parallel, branches: [" + branches.String() + "]}]\n",
		"too many steps":         "id: w\nsteps:\n" + steps.String(),
		"too many max_steps":     "id: w\nmax_steps: 100000000\nsteps: [{id: a, type: end}]\n",
		"too much at a time":     "id: w\nsteps: [{id: f, type: for_each, items: [1], max_concurrency: 100000, steps: [{id: a, type: end}]}]\n",
		"too many attempts":      "id: w\nsteps: [{id: a, type: set, vars: {x: 1}, retry: {max_attempts: 1000000}}]\n",
		"too long":               "id: w\ntimeout: 100000h\nsteps: [{id: a, type: end}]\n",
		"deep expression":        "id: w\nsteps: [{id: a, type: set, vars: {x: '${ " + strings.Repeat("(", 5000) + "1" + strings.Repeat(")", 5000) + " }'}}]\n",
		"long expression":        "id: w\nsteps: [{id: a, type: set, vars: {x: '${ 1" + strings.Repeat(" + 1", 30_000) + " }'}}]\n",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := workflow.Parse("w.yaml", []byte(src), nil)
			var list frontmatter.Errors
			if !errors.As(err, &list) || list[0].Line == 0 {
				t.Errorf("%.300v", err)
			}
			path := filepath.Join(dir, strings.ReplaceAll(name, " ", "-")+".yaml")
			must(t, os.WriteFile(path, []byte(src), 0o600))
			validate(t, state, path, path)
		})
	}
}
