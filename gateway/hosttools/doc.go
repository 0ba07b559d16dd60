// Package hosttools lets code inside a sandbox call tools that run on the host.
//
// A [Source] has the tools of one server: the program's own, or those of an MCP server (package mcpsource). A [Registry]
// holds the sources and the operator's policy. [Registry.Set] freezes what a run may call: schemas that are too large or
// too deep are left out, and nothing changes until the run ends. [Set.Access] is one command's access to it, and
// [Access.Serve] speaks MCP on a connection of that command.
//
// A call is checked in a fixed order, and the first check that fails answers: the grant, size and form of the arguments,
// their schema, policy and conditions, quotas, rate and slots, approval. Then the tool runs with a time limit, and its result
// is bounded: a large one becomes a file of the sandbox.
//
// Each call is a span "execute_tool NAME", whose parent is the span that the call names when that is of the command's own
// trace, else the span of the command. It has no arguments and no results.
package hosttools
