// Package server is the guest: it runs commands and serves files inside a sandbox, for hosts that reach it over a byte
// stream. docs/guest-protocol.md specifies what it says and what it owes.
//
// The package is Linux only; on other systems it is empty. It assumes that what it starts is hostile and runs as the
// same user as itself, so it keeps nothing that a command may not know, and it bounds all that a command can make it
// hold: output, execs, threads, descriptors.
package server
