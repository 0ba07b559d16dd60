package docker

import (
	"io"
	"net"
	"time"
)

// NewStream returns the demultiplexer of an engine's stream. The output must begin with start.
func NewStream(conn net.Conn, start string) io.ReadWriteCloser {
	return newStream(conn, []byte(start))
}

// NewGatherer returns a reader that reads from r in fewer and larger steps.
func NewGatherer(r io.Reader) io.Reader { return newGatherer(r) }

// GuestVolume returns the name of the volume with the guest agent.
func (b *Backend) GuestVolume() string { return string(b.d.guest.plain.name()) }

// SetFillPatience shortens the wait while another process fills the guest volume. It must be the first call.
func (b *Backend) SetFillPatience(d time.Duration) { b.d.guest.patience = d }

// SetGuestGrace sets the minimum age at which the guest volume of another version is removed. It must be the first
// call.
func (b *Backend) SetGuestGrace(d time.Duration) { b.d.guest.grace = d }

// AddNear adds the addresses of this host for an engine with a local socket.
var AddNear = addNear
