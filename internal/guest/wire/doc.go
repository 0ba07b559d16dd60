// Package wire is the protocol between a host and the guest inside a sandbox, as docs/guest-protocol.md specifies it.
//
// A connection begins with a marker of each side, which contains the version. Then a multiplexer carries one stream
// per request. On each stream travel frames (Frame), which hold the messages of messages.go.
package wire

// ProtocolVersion is the version of the link that this package speaks.
const ProtocolVersion = 3
