package client

import (
	"errors"
	"fmt"
)

// Errors of a connection. A failure that the guest reports comes back as a *wire.Error.
var (
	// ErrConnLost: the stream to the guest ended or nothing came over it for too long. What a pending call did inside
	// the sandbox is unknown.
	ErrConnLost = errors.New("connection to the guest agent lost")
	// ErrNoAnswer: the guest did not say hello in time.
	ErrNoAnswer = fmt.Errorf("%w: no response", ErrConnLost)
	// ErrProtocol: the guest sent something that it must not send.
	ErrProtocol = errors.New("protocol error of the guest agent")
	// ErrVersion: the guest speaks another version of the protocol. It is an ErrProtocol.
	ErrVersion = fmt.Errorf("%w", ErrProtocol)

	// ErrTakenOver: another host took over a terminal, whose command runs on.
	ErrTakenOver = errors.New("detached from the terminal: another host took it over")

	// ErrNotListening: another host listens as the service now.
	ErrNotListening = errors.New("another host took over the service")

	errUnanswered = protocolErrorf("the guest agent ended a request without a response")
	errClosed     = fmt.Errorf("%w: closed by this host", ErrConnLost)
)

func protocolErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}
