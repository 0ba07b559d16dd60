// Package tools is Workcell's plugin for Genkit. It provides tools to run code and commands in sandboxes.
//
// # Setup
//
//	go get github.com/workcell-dev/workcell
//
// A [session.Manager] opens sandboxes on a backend, and a [Plugin] connects it to Genkit. Each genkit.Init needs a
// separate Plugin:
//
//	engine, err := docker.New(ctx, nil) // or containerd.New, or local.New, which needs no engine
//	manager, err := session.NewManager(engine, nil)
//	defer manager.Close(ctx) // removes its sandboxes
//	plugin := &tools.Plugin{Manager: manager}
//	g := genkit.Init(ctx, genkit.WithPlugins(plugin, &googlegenai.GoogleAI{}))
//
// # Basic usage
//
// Use the plugin as middleware of a Generate call. The model must support tool calls:
//
//	resp, err := genkit.Generate(ctx, g,
//		ai.WithModelName("googleai/gemini-2.5-flash"),
//		ai.WithPrompt("How many primes are there below 10,000? Compute it."),
//		ai.WithUse(plugin.Use(tools.Sandbox{Runtime: frontmatter.RuntimePython})))
//
// Prompt files configure a sandbox with the `sandbox:` key. Load such files with [LoadAgents] or [LoadPrompt]. To let
// Genkit load a directory, use [PromptFS]. Genkit's own loader ignores `sandbox:`, so Init rejects directories with
// these files. The native Genkit form of the key is `use: [{name: workcell/sandbox, config: …}]`:
//
//	agents, err := tools.LoadAgents(g, "agents")
//	answer, err := agents["coder"].Run(ctx, map[string]any{"task": "…"}, nil)
//
// # Configuration
//
// [Sandbox] is the configuration for Go, frontmatter, and `use:`. See docs/reference/prompt-file.md for all fields. A
// Sandbox value is not middleware, because the middleware needs the plugin's manager. Use plugin.Use(tools.Sandbox{…})
// to create the middleware.
//
// # Keep a sandbox over several calls
//
// A Generate call without a run creates its own run, so the sandbox is removed when the call ends. To use a sandbox in
// several calls, or to resume an interrupted conversation, bind a run to the context and close it at the end:
//
//	run := session.Run{Namespace: record.NamespaceUser, ID: "conversation-7"} // import session/record
//	ctx = session.WithRun(ctx, run)
//	defer manager.CloseScope(ctx, run.Scope())
//
// The session of a Genkit agent (go/genkit/exp) is an open-ended run. All turns and sub-agents of the session use the
// same sandbox until the idle timeout. Specify the user with session.WithUser. Without a user, any client with the
// session's id could use the sandbox. To prevent this, ids that do not come from Genkit are refused. If a call is
// canceled, the processes it started in the sandboxes are killed.
//
// Tools can use only the sandboxes of one run. The error for an id of another run is the same as for an unknown id. The
// agents of a run share the sandbox named "default" unless their `session:` sets another name. A sandbox is opened when
// the first tool needs it. [Agent.Run] and package workflow bind runs themselves.
//
// sandbox_close releases a shared sandbox. It kills the agent's remaining processes and keeps the files for later
// agents. With delete_workspace, it removes the sandbox immediately.
//
// # Tools
//
// Compute mode has one tool, sandbox_run. It runs a program in a new sandbox and removes the sandbox afterwards. Code
// mode has a persistent sandbox. The tools of code mode are sandbox_open, sandbox_exec, sandbox_exec_read,
// sandbox_exec_wait, sandbox_exec_write, sandbox_exec_kill, sandbox_fs_write, sandbox_fs_edit, sandbox_fs_read,
// sandbox_fs_list, sandbox_fs_delete, sandbox_close, and with `snapshots: true` sandbox_snapshot and sandbox_rollback.
// All of them are multipart tools of Genkit. For example, sandbox_fs_read returns a media part for an image. Golden
// files in testdata record the tool schemas and the requests of each provider's plugin.
//
// [Plugin.Tools] returns the tools for ai.WithTools. It does not include the middleware's handling of model mistakes.
//
// # Dev UI
//
// With GENKIT_ENV=dev, Genkit's Dev UI shows and runs the tools, for example workcell/sandbox_exec. They share a
// separate sandbox. The Dev UI also lists the middleware workcell/sandbox and describes every configuration field.
//
// # Failures
//
// Errors a model can act on are tool output. Every output may contain an error with a code, a message, a remediation,
// and whether the same call may succeed later. docs/reference/errors.md lists all codes. A non-zero exit code is a
// result, not an error. The middleware prevents model mistakes from ending a run. It converts the following to output:
// calls to tools that are unknown or not offered, arguments that do not match the schema or are not JSON, and panics.
// Without the middleware, Genkit would end the run, run the tool anyway, or crash the program. Interrupts and errors of
// a done context are not converted. Messages never contain host paths. Details for operators go to [Plugin.Logger].
//
// # Spans
//
// The span invoke_agent NAME covers one run of an agent. It is the parent of Genkit's spans (prompt, generate, model,
// tool) and of the spans of package session, so each run is one trace. Tool spans record the program and exit code of
// commands. Package otelgenai renames them to follow the OpenTelemetry conventions. docs/reference/telemetry.md lists
// all attributes.
package tools
