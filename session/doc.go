// Package session opens sandboxes by key. Package sandbox runs commands and file operations in them.
//
// A [Manager] uses one [backend.SandboxBackend]. [Manager.Open] returns the sandbox of a [Key] and creates it if it
// does not exist. Concurrent callers with the same key share one sandbox. Callers with different keys never wait for
// each other. A [Session] is a [sandbox.Sandbox] with a key. It lives until a caller closes it, the run ends
// ([Manager.CloseScope]), the idle timeout passes, or the sandbox is lost.
//
// Most programs need these names of this package and of package sandbox: [NewManager], [Manager.Open], [Manager.Close],
// [Manager.CloseScope], [Options], [Request], [UserKey], [WorkflowKey], [NewRunID] with [WithRun], [Session] with the
// methods Exec, Start, ReadFile, and WriteFile, and [sandbox.ExecRequest] with [sandbox.ExecResult]. The package
// example uses all of them.
//
// # When the process dies
//
// Sandboxes outlive the owner process, so close the manager or the scope even if the program fails. If a process is
// killed, the sandboxes stay on the engine until another process sweeps them. The other process needs a manager with
// the same Options.Instance and a shared Store, for example a store of package record/sqlite. Every such manager sweeps
// when it is created and once a minute. The workcell command sweeps in a separate process, but a program that uses the
// library has no such process. Restart the program, or call admin.Sweep from a timer. Without an Instance, the sandbox
// of a killed program exits two minutes after the idle timeout. Then `workcell sandbox gc` lists the sandbox, and the
// sweep of any manager on the engine removes it an hour after the creation. To remove sandboxes at SIGTERM, use
// signal.NotifyContext and close the manager.
//
// # Errors
//
// Package sandbox describes the errors. If a key is open with a different request, Open returns a [*ConflictError].
//
// # Spans
//
// The package creates the spans session.Open, session.Connect, session.Close, session.Exec, session.Stream,
// session.ReadExec, session.WaitExec, session.WriteExec, session.KillExec, session.Terminal, session.JoinTerminal,
// session.ReadFile, session.WriteFile, session.EditFile, session.ListFiles, session.StatFile, session.RemoveFile,
// session.MakeDir, session.RenameFile, session.ReadTree, session.Diff, session.Snapshot, session.Rollback, and
// session.Fork. Attributes contain the run, the sandbox, the exec, sizes, and outcomes. They never contain a command
// line, an environment, file contents, or an error text.
package session

// Open of a key without a session takes this path:
//
//   - prepare completes the request, and tryOpen starts a creation (launch, create) or waits for a running one.
//   - provide takes a pooled sandbox or calls build. build reserves the key in the store.
//   - If the key has a sandbox, reserve adopts it (adopt, openAdopted). openAdopted starts the sandbox, or replaces it
//     with the existing workspace (rebuild, recreate, createOver).
//   - Otherwise, make creates the sandbox, and begin connects to it.
//   - settle calls the functions of the request and records the sandbox as ready.

// Lock order, outermost first:
//
//  1. Manager.mu.
//  2. Session.mu or the lock of the pool. Neither is taken while the other is held.
//  3. The lock of a sandbox.Sandbox, which methods of sandbox.Control take. Calls to the guest, for example
//     Control.OpenEgress and Control.Busy, begin without any lock.
//
// Manager.mu and Session.mu are never held across a call to the engine, the guest, the store, or a caller's function.
// All other locks, for example custody.Keeper.mu, guard the fields of one small type. Code with one of them takes none
// of the locks above. Of these locks, only pullRelay.mu is held while callers' functions run.
