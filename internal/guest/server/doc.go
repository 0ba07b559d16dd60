// Package server is the guest: it runs commands and serves files inside a sandbox, for hosts that reach it over a byte
// stream. docs/guest-protocol.md specifies the protocol.
//
// The package has the links, the requests and the execs; the rooms below it have the rest. Imports point from left to
// right:
//
//	server -> files, output -> disk -> proc -> wire
//
// All are Linux only; on other systems they are empty. They assume that what they start is hostile and runs as the same
// user as the guest, so they keep nothing that a command may not know, and bound all that a command can make them hold:
// output, execs, threads, descriptors.
package server
