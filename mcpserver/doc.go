// Package mcpserver serves the sandboxes of Genkit agents to MCP clients, through the same tools.
//
// Most users want the command `workcell mcp`. In Go code a [Server] stands on a [session.Manager]:
//
//	srv, err := mcpserver.New(manager, nil)
//	err = srv.ServeStdio(ctx, os.Stdin, os.Stdout)  // one client, until it hangs up
//	err = srv.ServeHTTP(ctx, listener, nil)         // many clients, until ctx ends
//
// # Protocol
//
// Both eras in the field are spoken: the one with an initialize handshake and sessions, up to 2025-11-25, and the one
// without either, 2026-07-28. JSON-RPC batches, which only the revision 2025-03-26 knew, are refused.
//
// # Who sees which sandbox
//
// A scope is a set of sandboxes that belong together; a tool call sees those of its own scope only, and an id of
// another scope gets the answer of an id that never existed. On stdio the process is the scope. On HTTP it is the MCP
// session where the client has one. Requests of the era without sessions belong to the owner that their token names,
// and must name the sandbox they mean: sandbox_open opens a new one each time, and its sandbox_id, which cannot be
// guessed, is the handle. Sandboxes that are idle for 30 minutes are closed.
//
// With Options.Shared several servers over HTTP serve the clients of revision 2026-07-28 together: each works in the
// sandboxes that the others opened. Sessions of older revisions belong to one server.
//
// # Failures
//
// What a client's model can do something about is a tool result with isError, whose structured content carries an error
// with a code of the closed set of package tools. Protocol errors are what is wrong with the message itself, a tool
// name that does not exist, and the end of the request.
//
// # Long calls
//
// A call that takes longer than 45 seconds is answered as pending with a task_id, and continues. It also continues if
// its client cancels it because of a timeout. The tools task_status, task_result, and task_cancel list such calls,
// return their results, and end them. Results are kept for Options.IdleTimeout. Servers with Options.Shared wait for
// the end of a call instead, because the next request may come to another server.
//
// # The guard policy
//
// A [Policy] refuses calls before they reach a sandbox. It is a guard rail against accidents, not a wall: a client that
// can run one program in a sandbox can have it do what a refused command does. The wall is the sandbox.
package mcpserver
