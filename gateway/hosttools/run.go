package hosttools

import (
	"cmp"
	"context"
	"sync"
)

// workflowRun is a run of a workflow.
type workflowRun struct {
	id     string
	agents *tallies // each agent has one for all its steps, also in workflows that this one runs
}

type tallies struct {
	mu     sync.Mutex // guards what follows
	byFile map[string]*tally
}

// tally is what the code of an agent did in a run: quotas hold for it and approvals last as long.
type tally struct {
	deciding chan struct{} // held while a condition decides about a call

	mu       sync.Mutex // guards what follows
	total    int64
	byTool   map[string]int64
	approved map[string]bool // tools and hashes of arguments
}

func newTally() *tally {
	return &tally{deciding: make(chan struct{}, 1), byTool: map[string]int64{}, approved: map[string]bool{}}
}

type (
	workflowKey struct{} // holds a workflowRun
	stepKey     struct{} // holds a step
)

// step is a visit of a step of a workflow: loops come back to one.
type step struct {
	path  string
	visit int
}

// WithWorkflow makes ctx that of a run of a workflow: conditions know the workflow's id, and the calls and approvals of
// an agent's code count in all its steps together.
func WithWorkflow(ctx context.Context, id string) context.Context {
	agents := &tallies{byFile: map[string]*tally{}}
	if outer, ok := ctx.Value(workflowKey{}).(workflowRun); ok {
		agents = outer.agents
	}
	return context.WithValue(ctx, workflowKey{}, workflowRun{id, agents})
}

// WithStep makes ctx that of a visit of a step of the workflow. Conditions know the step's path.
func WithStep(ctx context.Context, path string, visit int) context.Context {
	return context.WithValue(ctx, stepKey{}, step{path, visit})
}

// StepFromContext returns what WithStep was given; an empty path without it.
func StepFromContext(ctx context.Context) (path string, visit int) {
	s, _ := ctx.Value(stepKey{}).(step)
	return s.path, s.visit
}

// within completes the caller of a grant by the workflow of ctx and returns the agent's tally there, a new one outside.
func within(ctx context.Context, g *Grant) *tally {
	w, ok := ctx.Value(workflowKey{}).(workflowRun)
	if !ok {
		return newTally()
	}
	g.Caller.Workflow = w.id
	g.Caller.Step, _ = StepFromContext(ctx)
	file := cmp.Or(g.File, g.Caller.Agent)
	w.agents.mu.Lock()
	defer w.agents.mu.Unlock()
	t := w.agents.byFile[file]
	if t == nil {
		t = newTally()
		w.agents.byFile[file] = t
	}
	return t
}
