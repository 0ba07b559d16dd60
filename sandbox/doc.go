// Package sandbox is a handle to one running sandbox: it runs commands, copies files, and connects to terminals,
// ports, and services. Package session opens sandboxes and returns such handles; this package knows neither its
// managers nor its records.
//
//	res, err := s.Exec(ctx, sandbox.ExecRequest{Argv: []string{"python3", "-c", "print(6*7)"}})
//
// # Services
//
// Commands reach the host by what [Sandbox.Serve] serves, and by nothing else where the network is off: each command
// only what its [ExecRequest] grants it. [Command.Extend] gives a command the time that the host took to answer.
//
// # Errors
//
// Every error is a [*backend.Error] that wraps a sentinel of package backend where one fits; a context's error stays
// testable. A command's exit code is a result, never an error: an error means that the result is unknown. A program
// that could not be started is a [*LaunchError].
//
// # What the sandbox reports is untrusted
//
// The guest runs next to the commands, as the same user. Sizes, ids and states that it reports are checked, its texts
// are cut and cleaned of control characters before they become part of an error.
package sandbox
