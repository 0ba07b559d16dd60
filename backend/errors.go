package backend

import (
	"errors"
	"fmt"
	"strings"
)

// Drivers and sessions wrap these sentinel errors. Use errors.Is to test for them.
var (
	// ErrNotFound means that the sandbox, command, or file does not exist, or that the caller must not know about it.
	ErrNotFound = errors.New("not found")
	// ErrExists means that the resource already exists.
	ErrExists = errors.New("already exists")
	// ErrInvalid means that the request is malformed and cannot succeed without changes.
	ErrInvalid = errors.New("invalid argument")
	// ErrPermission means that a policy or the permissions of the sandbox's user forbid the operation.
	ErrPermission = errors.New("permission denied")
	// ErrTooLarge means that a documented size limit was exceeded. The error text names the limit.
	ErrTooLarge = errors.New("too large")
	// ErrClosed means that the session, manager, or driver was closed, by its owner or because its run ended.
	ErrClosed = errors.New("closed")
	// ErrLost means that the sandbox exited or was removed by another program. The processes are lost, and the files may
	// be lost.
	ErrLost = errors.New("sandbox lost")
	// ErrUnsupported means that this engine cannot enforce or perform the request.
	ErrUnsupported = errors.New("unsupported")
	// ErrUnavailable means that the engine does not respond. A later retry may succeed.
	ErrUnavailable = errors.New("engine unavailable")
	// ErrCapacity means that a configured maximum has been reached. Close a resource to make room.
	ErrCapacity = errors.New("at capacity")
	// ErrQuota means that the sandbox has reached one of its limits: disk, inodes, memory (the kernel killed the program),
	// or the 24 hours by which a command's timeout can be extended.
	ErrQuota = errors.New("quota exceeded")
	// ErrNoRoom means that the engine's or driver's disk for sandboxes is full, or too small for a workspace of the
	// requested size. It wraps ErrQuota.
	ErrNoRoom = fmt.Errorf("the host's disk is full: %w", ErrQuota)
	// ErrBusy means that a rollback or snapshot of the workspace is in progress, or that a process holds a lease on the
	// file. A later retry may succeed.
	ErrBusy = errors.New("busy")
	// ErrTimeout means that a time limit of the request expired. The context's deadline does not cause this error.
	ErrTimeout = errors.New("timed out")
	// ErrImage means that the image is missing, the registry refused it, or it does not match the digest.
	ErrImage = errors.New("image unavailable")
	// ErrEnvironment means that the packages for the sandbox must be installed first.
	ErrEnvironment = errors.New("environment not built")
	// ErrProtocol means that the host and the guest agent could not understand each other.
	ErrProtocol = errors.New("guest protocol error")
	// ErrVersion means that another version of Workcell created the sandbox, and this version cannot talk to the sandbox's
	// guest agent. It wraps ErrProtocol.
	ErrVersion = fmt.Errorf("another version of Workcell created the sandbox: %w", ErrProtocol)
)

// Error describes a failed operation of a backend on a sandbox. Package session creates these errors. Drivers return
// plain errors with a wrapped sentinel error.
type Error struct {
	Op      string // operation, for example "Open", "Exec", or "ReadFile"
	Backend string // name of the driver
	ID      string // session id, may be empty
	Err     error
}

// Error returns one line without host paths. The line names the sandbox, or the driver if ID is empty. It omits Op
// because users do not know the operation names.
func (e *Error) Error() string {
	about, text := e.Backend+": ", e.Err.Error()
	if e.ID != "" {
		about = "sandbox " + e.ID + ": "
	}
	return about + strings.TrimPrefix(text, e.Backend+": ")
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }
