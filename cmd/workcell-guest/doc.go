// Command workcell-guest is the main process of every Workcell sandbox: it runs commands and serves files for hosts
// that speak the protocol of docs/guest-protocol.md over a Unix socket in the abstract namespace.
//
//	workcell-guest [--workdir DIR] [--scratch DIR] [--orphan-timeout DURATION] [--ephemeral]
//	workcell-guest --listen-fd FD [--workdir DIR] [--scratch DIR] [--orphan-timeout DURATION] [--ephemeral]
//	workcell-guest launch
//	workcell-guest connect [--report]
//	workcell-guest report
//	workcell-guest install DIR [WORKSPACE]
//	workcell-guest network-trial listen PORT | dial DURATION TARGET...
//	workcell-guest tunnel HOST PORT
//	workcell-guest mcp
//	workcell-guest tools ls [SERVER] | search WORDS | show NAME | call NAME [JSON|-] [--save PATH] [--timeout DURATION]
//	workcell-guest version
//
// launch isolates its process as a sandbox and becomes the guest in it, with an inherited socket instead
// (package internal/guest/launch).
//
// connect, started by the engine's exec, bridges its own standard streams to the guest of the same sandbox. With --report
// it first writes the output of report.
//
// report, install and network-trial are for pods: what the image declares and what the container used, as JSON; a copy
// of the guest and what belongs to it for another container, and a workspace of its user; and the targets that a pod
// reaches, as bits of the exit code.
//
// tunnel, started by ssh in a sandbox as ProxyCommand, connects its standard streams to a host through the HTTP proxy
// in HTTPS_PROXY. If the proxy refuses, it prints the reason and exits with 1.
//
// mcp, started by a command of the sandbox, bridges its own standard streams to the tools that the host serves, at the
// address in WORKCELL_TOOLS, by default @workcell-tools. It exits with 0 at the end of both directions, with 69 if the
// connection breaks, and with 69 after one JSON-RPC error if the host serves no tools to the command.
//
// tools, also started as /.workcell/bin/tools, calls tools of the host: results on standard output, a failure as JSON
// on standard error with exit code 1, 77 when it was denied, 124 when a time limit ran out, 69 when the host is away.
//
// The command exists for Linux only.
package main
