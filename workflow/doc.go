// Package workflow loads workflow files and runs them: steps that let agents work and commands run in the sandboxes of
// one run, with loops, branches, retries and caps. docs/workflows.md describes the file.
//
//	agents := workflow.Agents(loaded) // from tools.LoadAgents
//	wf, err := workflow.Load("review.yaml", &workflow.LoadOptions{Agents: agents.File})
//	engine := workflow.NewEngine(manager, agents, nil)
//	result, err := engine.Run(ctx, wf, map[string]any{"repo": "."})
//
// [Load] finds all problems of a file at once, each with line and column. [Engine.Run] assigns the run an id, records
// every step in a [Journal] before the next begins, and closes the run's sandboxes however it ends. A run is a Genkit
// flow; [Engine.Register] shows a workflow in Genkit's developer UI.
//
// # Caps
//
// Whatever a file says, a run is bounded: by max_steps and timeout, by the number of branches, items and attempts, by
// how much it may remember, and by the cost of each expression. A run that passes a bound ends with an error that wraps
// [ErrLimit]. A workflow cannot run itself, also not by way of its agents.
//
// # Spans
//
// invoke_workflow ID, and below it workflow.step for each attempt of each step, carry the ids of run, workflow and
// step, the type of the step, visit, attempt and outcome. Inside workflow.step lie Genkit's spans and those of package
// session.
package workflow
