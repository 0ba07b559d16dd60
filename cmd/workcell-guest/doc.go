// Command workcell-guest is the main process of every Workcell sandbox. It runs commands and serves files for hosts,
// with the protocol in docs/contributing/guest-protocol.md, over a Unix socket in the abstract namespace.
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
// launch isolates the process as a sandbox and becomes the guest agent in it. It uses an inherited socket (package
// internal/guest/launch).
//
// connect is started by the engine's exec. It bridges the standard streams to the guest agent of the same sandbox. With
// --report, it first writes the output of report.
//
// report, install, and network-trial are for pods. report prints the settings of the image and the environment of the
// container as JSON. install copies the guest agent and its files for another container, and creates a workspace for
// the container's user. network-trial reports a pod's reachable targets as bits of the exit code.
//
// tunnel, started by ssh in a sandbox as ProxyCommand, connects the standard streams to a host through the HTTP proxy
// in HTTPS_PROXY. If the proxy refuses, it prints the reason and exits with 1.
//
// mcp, started by a command of the sandbox, bridges the standard streams to the host's tools, at the address in
// WORKCELL_TOOLS, by default @workcell-tools. It exits with 0 at the end of both directions, with 69 if the connection
// breaks, and with 69 after one JSON-RPC error if the host serves no tools to the command.
//
// tools, also started as /.workcell/bin/tools, calls host tools. It prints results to standard output. It prints an
// error as JSON to standard error and exits with 1, with 77 if the call was denied, 124 after a timeout, or 69 if the
// host is unavailable.
//
// The command exists only for Linux.
package main
