// Package session hands out sandboxes by key and runs commands and file operations in them.
//
// A [Manager] stands on one [backend.SandboxBackend]. [Manager.Open] is get-or-create: however many callers open one
// [Key] at once, one sandbox is made, and callers of different keys never wait for each other. A [Session] is a handle
// on one sandbox; it lives until somebody closes it, its run ends ([Manager.CloseScope]), it was idle for too long, or
// its sandbox is lost.
//
//	m, err := session.NewManager(driver, nil)
//	s, _, err := m.Open(ctx, session.WorkflowKey(runID, "default"), session.Request{Image: "python:3.11-slim"})
//	res, err := s.Exec(ctx, session.ExecRequest{Argv: []string{"python3", "-c", "print(6*7)"}})
//	err = m.CloseScope(ctx, session.Run{Namespace: "workflow", ID: runID}.Scope())
//
// # When the process dies
//
// Sandboxes outlive the process that has them. Close the manager, or the scope, also when the program fails; what a killed
// process has stays on the engine until another process sweeps: one with a manager of the same Options.Instance and a Store
// that both have, such as that of package record/sqlite. Every such manager sweeps when it is made and once a minute. Without both
// nobody knows whose those sandboxes are, and they stay until somebody removes them by hand. There is no process that does it
// for a library, as there is for the workcell command: start the program again, or let a timer call admin.Sweep.
//
// # Services
//
// Commands reach the host by what [Session.Serve] serves, and by nothing else where the network is off: each command only what
// its [ExecRequest] grants it. [Session.ExtendExec] gives a command the time that the host took to answer.
//
// # Errors
//
// Every error is a [*backend.Error] that wraps a sentinel of package backend where one fits; a context's error stays
// testable. A command's exit code is a result, never an error: an error means that the result is unknown. A program that
// could not be started is a [*LaunchError].
//
// # What the sandbox reports is untrusted
//
// The guest runs next to the commands, as the same user. Sizes, ids and states that it reports are checked, its texts
// are cut and cleaned of control characters before they become part of an error.
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
//  1. Session.egress, then Session.serving. They are held across calls to the guest, so that hosts are opened, and a
//     service is started, only once.
//  2. Manager.mu.
//  3. Session.mu or the lock of the pool. Neither is taken while the other is held.
//
// Manager.mu and Session.mu are never held across a call to the engine, the guest, the store, or a caller's function.
// All other locks, such as custody.Keeper.mu, guard the fields of one small type. Code that holds one of them takes none
// of the above. Of these, only pullRelay.mu is held while callers' functions run.
