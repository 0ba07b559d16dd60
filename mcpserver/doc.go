// Package mcpserver serves the sandbox tools of Genkit agents to MCP clients.
//
// Most users need only the command `workcell mcp`. In Go code, create a [Server] with a [session.Manager]:
//
//	srv, err := mcpserver.New(manager, nil)
//	err = srv.ServeStdio(ctx, os.Stdin, os.Stdout)  // one client, until it hangs up
//	err = srv.ServeHTTP(ctx, listener, nil)         // many clients, until ctx ends
//
// # Protocol
//
// The server supports both protocol generations in use. Revisions up to 2025-11-25 have an initialize handshake and
// sessions. Revision 2026-07-28 has neither. The server rejects JSON-RPC batches, which only revision 2025-03-26
// supported.
//
// # Scopes
//
// A scope is a set of related sandboxes. A tool call can use only the sandboxes of the scope. The error for an id of
// another scope is the same as for an unknown id. On stdio, the process is the scope. On HTTP, the scope is the MCP
// session, if there is one. Requests without sessions belong to the owner of their token and must specify their
// sandbox. For them, each sandbox_open opens a new sandbox and returns an unguessable sandbox_id. Sandboxes are closed
// after 30 minutes of inactivity.
//
// With Options.Shared, several HTTP servers serve the clients of revision 2026-07-28 together. Each server can use the
// sandboxes of the others. Sessions of older revisions belong to one server.
//
// # Failures
//
// Errors for a client's model are tool results with isError. The structured content has an error with one of the codes
// of package tools. Protocol errors report an invalid message, an unknown tool name, or the end of the request.
//
// # Long calls
//
// A call of more than 45 seconds is answered as pending with a task_id, and continues. It also continues if the client
// cancels it because of a timeout. The tools task_status, task_result, and task_cancel list such calls, return their
// results, and cancel them. Results are kept for Options.IdleTimeout, at most 64 with 16 MiB per scope. Servers with
// Options.Shared wait for the end of a call instead, because the next request may reach another server.
//
// # The guard policy
//
// A [Policy] refuses calls before they reach a sandbox. It prevents accidents, for example `rm -rf /`, but it provides
// no isolation: a program in a sandbox can do the same as a refused command. The sandbox provides the isolation.
package mcpserver
