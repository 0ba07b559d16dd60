// Package sandbox provides a handle to one running sandbox. The handle runs commands, copies files, and connects to
// terminals, ports, and services. Package session opens sandboxes and returns handles. This package does not depend on
// session managers or records.
//
//	res, err := s.Exec(ctx, sandbox.ExecRequest{Argv: []string{"python3", "-c", "print(6*7)"}})
//
// # Services
//
// Commands can connect to host services provided by [Sandbox.Serve]. If the network is off, they cannot reach the host
// in any other way. Each command can use only the services in its [ExecRequest]. [Command.Extend] compensates a command
// for the host's response time.
//
// # Errors
//
// Every error from a handle's method is a [*backend.Error]. If a sentinel of package backend fits, the error wraps it.
// Use errors.Is to test for context errors. A command's exit code is a result, never an error: after an error, the
// result is unknown. If a program could not be started, the error wraps a [*LaunchError]. Use errors.As to find it.
//
// # Reports of the sandbox are untrusted
//
// The guest runs next to the commands, as the same user. The package validates sizes, ids, and states from the guest.
// It shortens texts and removes their control characters before it includes them in an error.
package sandbox
