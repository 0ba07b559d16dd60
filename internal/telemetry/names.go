// Package telemetry contains the names of Workcell's spans and attributes, and a few helpers for uniform spans.
//
// Attributes never contain command lines, environment variables, contents, or the messages of errors. For an error,
// they contain only the class.
package telemetry

import "go.opentelemetry.io/otel/attribute"

// TracerName is the instrumentation scope of all Workcell spans.
const TracerName = "github.com/workcell-dev/workcell"

// Spans of package session.
const (
	SpanOpen       = "session.Open"
	SpanConnect    = "session.Connect"
	SpanClose      = "session.Close"
	SpanExec       = "session.Exec"
	SpanStream     = "session.Stream"
	SpanReadExec   = "session.ReadExec"
	SpanWaitExec   = "session.WaitExec"
	SpanWriteExec  = "session.WriteExec"
	SpanKillExec   = "session.KillExec"
	SpanReadFile   = "session.ReadFile"
	SpanWriteFile  = "session.WriteFile"
	SpanEditFile   = "session.EditFile"
	SpanListFiles  = "session.ListFiles"
	SpanStatFile   = "session.StatFile"
	SpanRemoveFile = "session.RemoveFile"
	SpanMakeDir    = "session.MakeDir"
	SpanRenameFile = "session.RenameFile"
	SpanReadTree   = "session.ReadTree"
	SpanDiff       = "session.Diff"
	SpanSnapshot   = "session.Snapshot"
	SpanRollback   = "session.Rollback"
	SpanFork       = "session.Fork"

	SpanTerminal     = "session.Terminal"
	SpanJoinTerminal = "session.JoinTerminal"
)

// Spans of drivers. The driver's name and a dot come first, for example "docker.Create".
const (
	SpanDriverCreate = "Create"
	SpanDriverPull   = "Pull"
	SpanDriverStart  = "Start"
	SpanDriverStop   = "Stop"
	SpanDriverDial   = "Dial"
	SpanDriverRemove = "Remove"

	SpanDriverSnapshot = "Snapshot"
	SpanDriverRollback = "Rollback"
)

// SpanEgress covers a connection from code in a sandbox to a network host, in package gateway/egress.
const SpanEgress = "egress.Connect"

// SpanService is a request of code inside a sandbox to an HTTP service, by package gateway/services.
const SpanService = "services.Request"

// SpanWorkflowStep covers one attempt of one step. Spans of operations in the conventions (package semconv) are named
// after the operation and the target, for example "invoke_workflow debug-and-fix".
const SpanWorkflowStep = "workflow.step"

// SpanExecutor covers one call of a CLI coding agent.
const SpanExecutor = "executor.Run"

// Span events, which explain how a command or a call ended.
const (
	EventPrefix  = "workcell."
	EventOOM     = EventPrefix + "oom_kill" // the kernel ended processes of the sandbox because they ran out of memory
	EventTimeout = EventPrefix + "timeout"  // the time limit of a command ended it
	EventQuota   = EventPrefix + "quota"    // a limit of the workspace, for files or for output, was reached
	EventRefused = EventPrefix + "refused"  // a rule did not allow a call; KeyRule contains the rule
	EventRemoved = EventPrefix + "removed"  // a sandbox was removed; KeyReason contains the reason
)

// Attribute keys.
const (
	KeyAgent       = attribute.Key("workcell.agent.name")
	KeyModel       = attribute.Key("workcell.model")
	KeyRunID       = attribute.Key("workcell.run.id")
	KeySandboxID   = attribute.Key("workcell.sandbox.id")
	KeySandboxKey  = attribute.Key("workcell.sandbox.key")
	KeyCreated     = attribute.Key("workcell.sandbox.created") // bool: whether Open created it
	KeyBackend     = attribute.Key("workcell.backend")
	KeyImage       = attribute.Key("workcell.image")
	KeyExecID      = attribute.Key("workcell.exec.id")
	KeyExitCode    = attribute.Key("workcell.exec.exit_code")
	KeyExecStatus  = attribute.Key("workcell.exec.status")
	KeyStdinBytes  = attribute.Key("workcell.exec.stdin_bytes")
	KeyStdoutBytes = attribute.Key("workcell.exec.stdout_bytes")
	KeyStderrBytes = attribute.Key("workcell.exec.stderr_bytes")
	KeyChunks      = attribute.Key("workcell.exec.chunks")
	KeyFileBytes   = attribute.Key("workcell.file.bytes")
	KeyEntries     = attribute.Key("workcell.file.entries")
	KeyWorkflowID  = attribute.Key("workcell.workflow.id")
	KeyStepID      = attribute.Key("workcell.step.id")
	KeyStepPath    = attribute.Key("workcell.step.path") // includes the branches and items of the step
	KeyStepType    = attribute.Key("workcell.step.type")
	KeyVisit       = attribute.Key("workcell.step.visit")   // starts at 1; greater in a loop
	KeyAttempt     = attribute.Key("workcell.step.attempt") // starts at 1; greater after a failure
	KeyOutcome     = attribute.Key("workcell.outcome")
	KeySteps       = attribute.Key("workcell.run.steps")        // attempts of all steps in the run
	KeyTurns       = attribute.Key("workcell.agent.turns")      // calls to the model
	KeyToolCalls   = attribute.Key("workcell.agent.tool_calls") // tool calls of the model
	KeyRule        = attribute.Key("workcell.rule")             // the rule that refused a call
	KeyReason      = attribute.Key("workcell.reason")
	KeyToolServer  = attribute.Key("workcell.tool.server")   // the server of a host tool
	KeyToolSet     = attribute.Key("workcell.tool.set")      // digest of the host tools available to the run
	KeyDecision    = attribute.Key("workcell.tool.decision") // allowed, denied, approved, or rejected
	KeyArgsBytes   = attribute.Key("workcell.tool.args_bytes")
	KeyResultBytes = attribute.Key("workcell.tool.result_bytes")
	KeyCost        = attribute.Key("workcell.model.cost_usd")
	KeyFirstByte   = attribute.Key("workcell.model.ttft_ms")     // from the request to the first byte of the response
	KeyExecutor    = attribute.Key("workcell.executor")          // the CLI: claude, codex, …
	KeySent        = attribute.Key("workcell.egress.sent_bytes") // bytes sent to the host
	KeyReceived    = attribute.Key("workcell.egress.received_bytes")
)
