// Package wire implements the protocol between a host and the guest agent, as specified in
// docs/contributing/guest-protocol.md.
//
// A connection begins with a marker from each side, which contains the version. After that, a multiplexer carries one
// stream per request. Each stream carries frames (Frame) with the messages in messages.go.
package wire

// ProtocolVersion is the protocol version of this package.
const ProtocolVersion = 3
