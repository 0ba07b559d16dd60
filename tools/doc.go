// Package tools is the Genkit plugin of Workcell: tools that run code and commands in sandboxes, for agents that Genkit
// runs.
//
// # Setup
//
//	go get github.com/workcell-dev/workcell
//
// A [session.Manager] on a backend opens the sandboxes, and a [Plugin] connects it to Genkit. One plugin is for one
// genkit.Init:
//
//	engine, err := docker.New(ctx, nil) // or containerd.New, or local.New, which needs no engine
//	manager, err := session.NewManager(engine, nil)
//	defer manager.Close(ctx) // removes its sandboxes
//	plugin := &tools.Plugin{Manager: manager}
//	g := genkit.Init(ctx, genkit.WithPlugins(plugin, &googlegenai.GoogleAI{}))
//
// # Basic usage
//
// As middleware of any Generate call, with any model that calls tools:
//
//	resp, err := genkit.Generate(ctx, g,
//		ai.WithModelName("googleai/gemini-2.5-flash"),
//		ai.WithPrompt("How many primes are there below 10,000? Compute it."),
//		ai.WithUse(plugin.Use(tools.Sandbox{Runtime: frontmatter.RuntimePython})))
//
// In prompt files that say `sandbox:`, which [LoadAgents], [LoadPrompt] and [PromptFS] load, the last for those who let
// Genkit load a directory; Genkit's own loader ignores `sandbox:`, so Init refuses such a file. The native form is
// `use: [{name: workcell/sandbox, config: …}]`:
//
//	agents, err := tools.LoadAgents(g, "agents")
//	answer, err := agents["coder"].Run(ctx, map[string]any{"task": "…"}, nil)
//
// # Configuration
//
// [Sandbox] is the configuration, in Go, in frontmatter and in `use:` alike: docs/agents.md has every field. A value of
// it is not yet middleware: it needs the plugin's manager, so write plugin.Use(tools.Sandbox{…}).
//
// # Keep a sandbox over several calls
//
// A Generate call that belongs to no run is a run of its own: its sandbox is removed when the call ends. For a
// conversation of several calls, or to resume an interrupted one, bind a run to the context, and close it:
//
//	run := session.Run{Namespace: session.NamespaceUser, ID: "conversation-7"}
//	ctx = session.WithRun(ctx, run)
//	defer manager.CloseScope(ctx, run.Scope())
//
// The session of a Genkit agent (go/genkit/exp) is a run that is not closed: its turns, and the sub-agents that it
// asks, find the sandbox until it was idle. Name the user (session.WithUser): without one, everybody who has the
// session's id has the sandbox, and ids that are not Genkit's own are refused. When a call is cancelled, what it had
// started in its sandboxes ends.
//
// Tools see the sandboxes of one run and no others: an id of another run gets the answer of an id that never existed. A
// run's agents share the sandbox named "default" unless their `session:` names another. Nothing is opened before the
// first tool needs it. [Agent.Run] and package workflow bind runs themselves.
//
// sandbox_close releases a shared sandbox: what the agent left running in it is ended, and the files stay for the
// agents that come after it. With delete_workspace the sandbox is removed at once.
//
// # Tools
//
// Compute mode has one tool, sandbox_run: a program runs in a fresh sandbox that is gone afterwards. Code mode has a
// sandbox that keeps its files: sandbox_open, sandbox_exec, sandbox_exec_read, sandbox_exec_wait, sandbox_exec_write,
// sandbox_exec_kill, sandbox_fs_write, sandbox_fs_edit, sandbox_fs_read, sandbox_fs_list, sandbox_fs_delete,
// sandbox_close, and with `snapshots: true` sandbox_snapshot and sandbox_rollback. All are multipart tools of Genkit:
// sandbox_fs_read of an image returns a media part. Golden files under testdata pin the schemas that models see, and
// what each provider's plugin makes of them.
//
// [Plugin.Tools] returns them for ai.WithTools, without what the middleware does for a model that makes mistakes.
//
// # Dev UI
//
// With GENKIT_ENV=dev the tools can be seen and run in Genkit's Dev UI, as workcell/sandbox_exec and so on. They share
// a sandbox of their own. The middleware workcell/sandbox is listed with a description of every field of its
// configuration.
//
// # Failures
//
// What a model can do something about is output: every output may carry an error with a code, a message, a remediation
// and whether the same call may succeed later. The codes are a closed set, which docs/agents.md lists. A non-zero exit
// code is a result. The middleware keeps a model's mistakes from ending a run: a call of a tool that does not exist or
// was not offered, arguments that do not fit or are no JSON and a panic come back as output, where Genkit would end the
// run, run the tool all the same, or end the program. The end of a context and interrupts stay what they are. No
// message holds paths of the host; what only operators should know goes to [Plugin.Logger].
//
// # Spans
//
// invoke_agent NAME encloses one run of an agent, so that Genkit's own spans (prompt, generate, model, tool) and those
// of package session below them are one trace. The spans of tools get the program and exit code of commands; package
// otelgenai names them as OpenTelemetry's conventions do. docs/telemetry.md lists all attributes.
package tools
