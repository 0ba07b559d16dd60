package session

import (
	"errors"
	"fmt"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// ConflictError reports that the key is open with a different request. It wraps backend.ErrExists.
type ConflictError struct {
	Key Key
	// Fields are the differing fields: "image", "user", "root", "env", "limits", "network", "oci_runtime",
	// "environment", "mounts", "cache", or "idle policy". "request" means that the hashes differ, but the fields are
	// unknown.
	Fields []string
	// Gone means that the sandbox was removed and only its files were kept.
	Gone bool
}

// Error returns a one-line message.
func (e *ConflictError) Error() string {
	fields := strings.Join(e.Fields, ", ")
	if e.Gone {
		return fmt.Sprintf("sandbox %s was removed but its workspace was kept; it was created with different settings: %s",
			e.Key, fields)
	}
	return fmt.Sprintf("sandbox %s already exists with different settings: %s", e.Key, fields)
}

// Unwrap returns backend.ErrExists.
func (e *ConflictError) Unwrap() error { return backend.ErrExists }

// VanishedError reports that a sandbox's container, or the driver's equivalent of a container, is missing. The
// workspace was kept, and the next Open of Key recreates the sandbox. VanishedError wraps backend.ErrLost.
type VanishedError struct {
	Key Key
}

// Error returns a one-line message.
func (e *VanishedError) Error() string {
	return fmt.Sprintf("%v: the container of sandbox %s no longer exists; its workspace was kept", backend.ErrLost, e.Key)
}

// Unwrap returns backend.ErrLost.
func (e *VanishedError) Unwrap() error { return backend.ErrLost }

// engineError sanitizes an engine's error. It leaves an InstallError unchanged, because the text is already clean.
func engineError(err error) error {
	if install := (*InstallError)(nil); errors.As(err, &install) {
		return err
	}
	return sanitize.EngineError(err)
}
