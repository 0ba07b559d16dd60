package backend

import (
	"errors"
	"fmt"
	"strings"
)

// Sentinels that drivers and sessions wrap. Test with errors.Is.
var (
	// ErrNotFound: there is no such sandbox, exec or file, or the caller may not know of it.
	ErrNotFound = errors.New("not found")
	// ErrExists: the thing to make is there already.
	ErrExists = errors.New("already exists")
	// ErrInvalid: the request can never succeed as it stands.
	ErrInvalid = errors.New("invalid argument")
	// ErrPermission: the sandbox's user may not do that, or a policy forbids it.
	ErrPermission = errors.New("permission denied")
	// ErrTooLarge: a documented size limit was passed; the text names it.
	ErrTooLarge = errors.New("too large")
	// ErrClosed: the session, manager or driver was closed, by its owner or by the end of its run.
	ErrClosed = errors.New("closed")
	// ErrLost: the sandbox died or was removed behind our back; what it held is gone or unreachable.
	ErrLost = errors.New("sandbox lost")
	// ErrUnsupported: this engine cannot enforce or do what was asked.
	ErrUnsupported = errors.New("unsupported")
	// ErrUnavailable: the engine does not answer; trying again later may help.
	ErrUnavailable = errors.New("engine unavailable")
	// ErrCapacity: a configured maximum is reached; closing something helps.
	ErrCapacity = errors.New("at capacity")
	// ErrQuota: the sandbox's disk or inode limit is reached.
	ErrQuota = errors.New("quota exceeded")
	// ErrNoRoom: the disk that the engine or the driver keeps sandboxes on is full, or has no room for a workspace of the
	// size that was asked for. It is an ErrQuota.
	ErrNoRoom = fmt.Errorf("the host's disk is full: %w", ErrQuota)
	// ErrBusy: a rollback or snapshot of the workspace is in progress, or a process has a lease on the file. Trying again
	// later helps.
	ErrBusy = errors.New("busy")
	// ErrTimeout: a time limit of the request itself, not of the context, ran out.
	ErrTimeout = errors.New("timed out")
	// ErrImage: the image is missing, refused by the registry or does not match its digest.
	ErrImage = errors.New("image unavailable")
	// ErrEnvironment: what the sandbox is to find installed is not there, and must be installed first.
	ErrEnvironment = errors.New("environment not built")
	// ErrProtocol: host and guest did not understand each other.
	ErrProtocol = errors.New("guest protocol error")
	// ErrVersion: another version of Workcell made the sandbox, whose guest this version does not understand. It is an
	// ErrProtocol.
	ErrVersion = fmt.Errorf("the sandbox is of another version: %w", ErrProtocol)
)

// Error is a failed operation of a backend on a sandbox. Package session builds it; drivers return plain
// errors that wrap a sentinel.
type Error struct {
	Op      string // "Open", "Exec", "ReadFile", …
	Backend string // name of the driver
	ID      string // session id, may be empty
	Err     error
}

// Error returns one line without host paths. It names the sandbox or else the driver, but not Op, which users do not
// know.
func (e *Error) Error() string {
	about, text := e.Backend+": ", e.Err.Error()
	if e.ID != "" {
		about = "sandbox " + e.ID + ": "
	}
	return about + strings.TrimPrefix(text, e.Backend+": ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }
