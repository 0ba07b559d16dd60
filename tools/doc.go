// Package tools provides Genkit agents with tools that work in sandboxes.
//
// Most users want three things of it: a [Plugin] for genkit.Init, prompt files that say `sandbox:` in their frontmatter,
// and [LoadAgents] (or [LoadPrompt], or [PromptFS] for those who let Genkit load a directory):
//
//	plugin := &tools.Plugin{Manager: manager}
//	g := genkit.Init(ctx, genkit.WithPlugins(plugin, &googlegenai.GoogleAI{}))
//	agents, err := tools.LoadAgents(g, "agents")
//	answer, err := agents["coder"].Run(ctx, map[string]any{"task": "…"}, nil)
//
// In Go code the same is ai.WithUse(plugin.Use(tools.Sandbox{Mode: frontmatter.ModeCode})).
//
// # Tools
//
// Compute mode has one tool, sandbox_run: a program runs in a fresh sandbox that is gone afterwards. Code mode has a
// sandbox that keeps its files: sandbox_open, sandbox_exec, sandbox_exec_read, sandbox_exec_wait, sandbox_exec_write,
// sandbox_exec_kill, sandbox_fs_write, sandbox_fs_read, sandbox_fs_list, sandbox_fs_delete, sandbox_close. Golden
// files under testdata pin the schemas that models see, and what each provider's plugin makes of them.
//
// # Sandboxes and runs
//
// Tools see the sandboxes of one run (session.WithRun) and no others: an id of another run gets the answer of an id that
// never existed. A run's agents share the sandbox named "default" unless their `session:` names another. Nothing is
// opened before the first tool needs it. A Generate call that belongs to no run is a run of its own, closed at its end;
// bind a run to keep a sandbox over several calls, as for resuming an interrupted one. The session of a Genkit agent
// (go/genkit/exp) is a run that is not closed: its turns, and the sub-agents that it asks, find the sandbox until it was idle.
// When a call is cancelled, what it had started in its sandboxes ends.
//
// sandbox_close releases a shared sandbox: what the agent left running in it is ended, and the files stay for the
// agents that come after it. With delete_workspace the sandbox is removed at once.
//
// # Failures
//
// What a model can do something about is output: every output may carry an error with a code, a message, a remediation
// and whether the same call may succeed later. The codes are a closed set, which docs/agents.md lists. A non-zero exit code
// is a result. The middleware keeps a model's mistakes from ending a run: a call of a tool that does not exist or was not
// offered, arguments that do not fit and a panic come back as output, where Genkit would end the run, run the tool all the
// same, or end the program. The end of a context and interrupts stay what they are. No message holds paths of the host;
// what only operators should know goes to [Plugin.Logger].
//
// # Spans
//
// agent.Run (attributes workcell.run.id, workcell.agent.name, workcell.model) encloses one run of an agent, so that
// Genkit's own spans (prompt, generate, model, tool) and those of package session below them are one trace.
package tools
