// Command workcell-guest is the main process of every Workcell sandbox: it runs commands and serves files for a host
// that speaks the protocol of docs/guest-protocol.md over its standard input and output.
//
//	workcell-guest [--workdir DIR] [--scratch DIR] [--lease DURATION] [--orphan-timeout DURATION]
//	workcell-guest --listen-fd FD [--workdir DIR] [--scratch DIR] [--lease DURATION] [--orphan-timeout DURATION]
//	workcell-guest launch
//	workcell-guest connect
//	workcell-guest version
//
// launch isolates its own process as a sandbox and becomes the guest in it, with an inherited socket in place
// of the standard streams (package internal/guest/launch).
//
// connect, started by the engine's exec, bridges its own standard streams to the guest of the same sandbox. The command
// exists for Linux only.
package main
