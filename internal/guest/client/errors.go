package client

import (
	"errors"
	"fmt"
)

// Errors of a connection. Failures reported by the guest agent are returned as *wire.Error.
var (
	// ErrConnLost means that the stream to the guest agent ended or was silent for too long. The effects of pending calls
	// in the sandbox are unknown.
	ErrConnLost = errors.New("connection to the guest agent lost")
	// ErrNoAnswer means that the guest agent did not send the hello in time.
	ErrNoAnswer = fmt.Errorf("%w: no response", ErrConnLost)
	// ErrProtocol means that the guest agent violated the protocol.
	ErrProtocol = errors.New("protocol error of the guest agent")
	// ErrVersion means that the guest agent uses another version of the protocol. It wraps ErrProtocol.
	ErrVersion = fmt.Errorf("%w", ErrProtocol)

	// ErrTakenOver means that another host took over the terminal. Its command keeps running.
	ErrTakenOver = errors.New("detached from the terminal: another host took it over")

	// ErrNotListening means that another host took over the service.
	ErrNotListening = errors.New("another host took over the service")

	errUnanswered = protocolErrorf("the guest agent ended a request without a response")
	errClosed     = fmt.Errorf("%w: closed by this host", ErrConnLost)
)

func protocolErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}
