// Package wire is the protocol between a host and the guest inside a sandbox, as docs/guest-protocol.md specifies it.
//
// It has three layers. The link (Marker, Chunk, LinkReader) carries bytes over a stream that may hold leftovers of an
// earlier host, and finds its place again by a nonce. A multiplexer above it carries one stream per request. On each
// stream travel frames (Frame), which hold the messages of messages.go.
package wire

// ProtocolVersion is the version of the link that this package speaks.
const ProtocolVersion = 1
