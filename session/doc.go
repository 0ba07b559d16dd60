// Package session opens sandboxes by key. Package sandbox runs commands and file operations in them.
//
// A [Manager] stands on one [backend.SandboxBackend]. [Manager.Open] is get-or-create: however many callers open one
// [Key] at once, one sandbox is made, and callers of different keys never wait for each other. A [Session] is a
// [sandbox.Sandbox] with a key; it lives until a caller closes it, its run ends ([Manager.CloseScope]), it was idle for
// too long, or its sandbox is lost.
//
// Most programs need fifteen names of this package and of package sandbox: [NewManager], [Manager.Open],
// [Manager.Close], [Manager.CloseScope], [Options], [Request], [UserKey], [WorkflowKey], [NewRunID] with [WithRun],
// [Session], its methods Exec, Start, ReadFile, and WriteFile, and [sandbox.ExecRequest] with [sandbox.ExecResult].
// The example uses them all.
//
// # When the process dies
//
// Sandboxes outlive the process that has them. Close the manager, or the scope, also when the program fails; what a
// killed process has stays on the engine until another process sweeps: one with a manager of the same Options.Instance
// and a Store that both have, such as that of package record/sqlite. Every such manager sweeps when it is made and once
// a minute. There is no process that does it for a library, as there is for the workcell command: start the program
// again, or let a timer call admin.Sweep. Without an Instance, the sandbox of a killed program ends by itself two
// minutes after its idle timeout. Then `workcell sandbox gc` lists it, and the sweep of any manager on the engine
// removes it an hour after its creation. To remove it at SIGTERM, use signal.NotifyContext and close the manager.
//
// # Errors
//
// Errors are those of package sandbox. A key that is open with another request is a [*ConflictError].
//
// # Spans
//
// session.Open, session.Connect, session.Close, session.Exec, session.Stream, session.ReadExec, session.WaitExec,
// session.WriteExec, session.KillExec, session.Terminal, session.JoinTerminal, session.ReadFile, session.WriteFile,
// session.EditFile, session.ListFiles, session.StatFile, session.RemoveFile, session.MakeDir, session.RenameFile,
// session.ReadTree, session.Diff, session.Snapshot, session.Rollback, session.Fork. Attributes name the run, the
// sandbox, the exec, sizes and outcomes; never a command line, an environment, contents or the text of an error.
package session

// Lock order, outermost first:
//
//  1. Manager.mu.
//  2. Session.mu or the lock of the pool. Neither is taken while the other is held.
//  3. The lock of a sandbox.Sandbox, which methods of sandbox.Control take. Calls to the guest, such as
//     Control.OpenEgress and Control.Busy, begin without any lock.
//
// Manager.mu and Session.mu are never held across a call to the engine, the guest, the store, or a caller's function.
// All other locks, such as custody.Keeper.mu, guard the fields of one small type. Code that holds one of them takes
// none of the above. Of these, only pullRelay.mu is held while callers' functions run.
