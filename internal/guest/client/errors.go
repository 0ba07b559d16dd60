package client

import (
	"errors"
	"fmt"
)

// Errors of a connection. Failures reported by the guest agent are returned as *wire.Error.
var (
	// ErrConnLost is the error after the stream to the guest agent ended or was silent for too long. The effects of
	// pending calls in the sandbox are unknown.
	ErrConnLost = errors.New("connection to the guest agent lost")
	// ErrNoAnswer is the error if the guest agent's hello does not arrive in time.
	ErrNoAnswer = fmt.Errorf("%w: no response", ErrConnLost)
	// ErrProtocol is the error for a protocol violation of the guest agent.
	ErrProtocol = errors.New("protocol error of the guest agent")
	// ErrVersion is the error for a guest agent with another version of the protocol. It wraps ErrProtocol.
	ErrVersion = fmt.Errorf("%w", ErrProtocol)

	// ErrTakenOver is the error after another host took over the terminal. The command keeps running.
	ErrTakenOver = errors.New("detached from the terminal: another host took it over")

	// ErrNotListening is the error after another host took over the service.
	ErrNotListening = errors.New("another host took over the service")

	errUnanswered = protocolErrorf("the guest agent ended a request without a response")
	errClosed     = fmt.Errorf("%w: closed by this host", ErrConnLost)
)

func protocolErrorf(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}
