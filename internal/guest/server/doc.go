// Package server implements the guest agent. It runs commands and serves files inside a sandbox, for hosts connected
// over a byte stream. docs/contributing/guest-protocol.md specifies the protocol.
//
// This package handles connections, requests, and commands. Other packages implement the rest. Imports go from left to
// right:
//
//	server -> files, output -> disk -> proc -> wire
//
// All packages are Linux only. They are empty on other systems. They assume hostile commands, run by the same user as
// the guest agent. Therefore they store no secrets from commands. They limit all resources for a command, such as
// output, threads, and descriptors.
package server
