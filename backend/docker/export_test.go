package docker

import (
	"io"
	"net"
	"time"
)

// NewStream returns the demultiplexer of an engine's stream, whose output must start with start.
func NewStream(conn net.Conn, start string) io.ReadWriteCloser {
	return newStream(conn, []byte(start))
}

// NewGatherer returns a reader in fewer and larger steps.
func NewGatherer(r io.Reader) io.Reader { return newGatherer(r) }

// GuestVolume names the volume that carries the guest.
func (b *Backend) GuestVolume() string { return string(b.d.guest.plain.name()) }

// SetFillPatience shortens the wait for another process that fills the guest's volume. Call it before anything else.
func (b *Backend) SetFillPatience(d time.Duration) { b.d.guest.patience = d }

// SetGuestGrace changes how old the volume of another version's guest must be to go. Call it before anything else.
func (b *Backend) SetGuestGrace(d time.Duration) { b.d.guest.grace = d }
