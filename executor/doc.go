// Package executor runs CLI coding agents in sandboxes: it calls the CLI with a task, parses the events that it tells, and ends
// its whole tree when the task is over. A [Driver] knows how one CLI is called and what its output means; there is one for
// each of Claude Code, Codex, OpenCode and Gemini CLI.
//
// A CLI gets nothing but a base URL and a key for its model, which hold inside the sandbox alone, and at most one MCP server: that
// of the host's tools. It has a home of its own below the workspace, /workspace/.workcell/home, of which only its sessions outlive a
// call. What else a repository or an earlier call left there has no effect, as have configurations of the repository.
package executor
