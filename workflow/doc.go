// Package workflow loads workflow files and runs them. The steps of a workflow run agents and commands in the sandboxes
// of one run, with loops, branches, retries, and limits. docs/reference/workflow-file.md describes the file.
//
//	agents := workflow.Agents(loaded) // from tools.LoadAgents
//	wf, err := workflow.Load("review.yaml", &workflow.LoadOptions{Agents: agents.File})
//	engine := workflow.NewEngine(manager, agents, nil)
//	result, err := engine.Run(ctx, wf, map[string]any{"repo": "."})
//
// [Load] reports all problems of a file at once, with line and column. [Engine.Run] assigns an id to the run, records
// each step in a [Journal] before the next one starts, and closes the run's sandboxes at the end. A run is a Genkit
// flow. [Engine.Register] makes a workflow available in Genkit's developer UI.
//
// # Limits
//
// Every run is bounded by max_steps and timeout, by the numbers of branches, items, and attempts, by the size of its
// state, and by the cost of each expression. If a run exceeds a limit other than the timeout, it ends
// with an error wrapping [ErrLimit]. A workflow cannot run itself, not even through its agents.
//
// # Spans
//
// A run has the span "invoke_workflow ID". Each attempt of a step has a child span workflow.step. The attributes
// contain the ids of the run, workflow, and step, and the step's type, visit count, attempt, and outcome. The children
// of workflow.step are Genkit's spans and the spans of package session.
package workflow
