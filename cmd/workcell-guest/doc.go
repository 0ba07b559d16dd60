//go:build linux

// Command workcell-guest is the main process of every Workcell sandbox. It runs commands and serves files for hosts,
// with the protocol in docs/contributing/guest-protocol.md.
//
//	workcell-guest [FLAGS]
//	workcell-guest launch
//	workcell-guest connect [--report]
//	workcell-guest report
//	workcell-guest install DIR [WORKSPACE]
//	workcell-guest network-trial listen PORT | dial DURATION TARGET...
//	workcell-guest netguard probe | apply RULES
//	workcell-guest tunnel HOST PORT
//	workcell-guest interpret DIR LANGUAGE
//	workcell-guest mcp
//	workcell-guest tools ls [SERVER] | search WORDS | show NAME | call NAME [JSON|-] [--save PATH] [--timeout DURATION]
//	workcell-guest version
//
// Without a command, it is the guest agent. It listens on a Unix socket in the abstract namespace, or on an inherited
// socket with --listen-fd. If it is not process 1, it exits at the end of standard input. For all flags, run
// workcell-guest -help.
//
// launch isolates the process as a sandbox and becomes the guest agent in it. It uses an inherited socket (package
// internal/guest/launch).
//
// connect is started by the engine's exec. It bridges the standard streams to the guest agent of the same sandbox. With
// --report, it first writes the output of report.
//
// report, install, and network-trial are for pods. report prints the settings of the image and the environment of the
// container as JSON. install copies the guest agent and its files for another container, and creates a workspace for
// the container's user. network-trial listens on a port, or reports a pod's reachable targets in the exit code.
//
// netguard blocks destinations of a bridged sandbox, in a privileged container of the host (package
// internal/guest/netguard).
//
// tunnel, started by ssh in a sandbox as ProxyCommand, connects the standard streams to a host through the HTTP proxy
// in HTTPS_PROXY. If the proxy refuses, it prints the reason.
//
// interpret runs the program on standard input in a running interpreter, which listens on DIR/LANGUAGE.sock.
//
// mcp, started by a command of the sandbox, bridges the standard streams to the host's tools, at the address in
// WORKCELL_TOOLS, by default @workcell-tools. It exits at the end of both directions. If the host serves no tools to
// the command, it prints one JSON-RPC error.
//
// tools, also started as /.workcell/bin/tools, calls host tools. It prints results to standard output and errors as
// JSON to standard error.
//
// Exit codes:
//
//   - 0: success
//   - 1: failure, including wrong usage of most commands
//   - 2: unknown flag of the guest agent, or wrong usage of tools
//   - 64 and above, of network-trial dial: 64, plus bit N for reachable target N, counted from 0
//   - 69: the host is unavailable to mcp or tools, or the interpreter to interpret
//   - 77: a tool call was denied
//   - 124: a tool call timed out
//   - any other of interpret: the program's exit code
package main
