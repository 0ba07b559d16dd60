package hosttools

import (
	"cmp"
	"context"
	"sync"
	"sync/atomic"

	"golang.org/x/time/rate"
)

// workflowRun is a run of a workflow.
type workflowRun struct {
	id     string
	agents *sync.Map // *tally by agent file, for all steps and nested workflows
}

// tally counts the calls of an agent's code in a run. Limits and approvals apply to the whole run.
type tally struct {
	deciding chan struct{} // held while a condition decides about a call
	// slots are the running calls by depth. A handler that starts a nested run keeps its slot until the run ends.
	slots   [maxDepth]chan struct{}
	rate    *rate.Limiter
	refused atomic.Int64 // number of refused calls

	mu       sync.Mutex // guards the fields below
	total    int64
	byTool   map[string]int64
	approved map[string]bool // tools and argument hashes
}

func newTally(limits Limits) *tally {
	t := &tally{
		deciding: make(chan struct{}, 1), rate: rate.NewLimiter(rate.Limit(limits.PerSecond), int(limits.PerSecond)),
		byTool: map[string]int64{}, approved: map[string]bool{},
	}
	for i := range t.slots {
		t.slots[i] = make(chan struct{}, limits.Concurrent)
	}
	return t
}

type (
	workflowKey struct{} // holds a workflowRun
	stepKey     struct{} // holds a step
)

// step is an iteration of a workflow step. Loops run a step several times.
type step struct {
	path  string
	visit int
}

// WithWorkflow returns a context for a workflow run. Conditions can use the workflow's id. Calls and approvals of an
// agent's code count for all steps together.
func WithWorkflow(ctx context.Context, id string) context.Context {
	agents := &sync.Map{}
	if outer, ok := ctx.Value(workflowKey{}).(workflowRun); ok {
		agents = outer.agents
	}
	return context.WithValue(ctx, workflowKey{}, workflowRun{id, agents})
}

// WithStep returns a context for an iteration of a workflow step. Conditions can use the step's path.
func WithStep(ctx context.Context, path string, visit int) context.Context {
	return context.WithValue(ctx, stepKey{}, step{path, visit})
}

// StepFromContext returns the arguments of WithStep. Without WithStep, path is empty.
func StepFromContext(ctx context.Context) (path string, visit int) {
	s, _ := ctx.Value(stepKey{}).(step)
	return s.path, s.visit
}

// within adds the workflow of ctx to the grant's caller and returns the agent's tally. Without a workflow, it returns a
// new tally.
func within(ctx context.Context, g *Grant, limits Limits) *tally {
	w, ok := ctx.Value(workflowKey{}).(workflowRun)
	if !ok {
		return newTally(limits)
	}
	g.Caller.Workflow = w.id
	g.Caller.Step, _ = StepFromContext(ctx)
	shared, _ := w.agents.LoadOrStore(cmp.Or(g.File, g.Caller.Agent), newTally(limits))
	t, _ := shared.(*tally) // the map has no other values
	return t
}
