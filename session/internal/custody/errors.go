package custody

import (
	"fmt"
	"regexp"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session/record"
)

// ErrNoSandbox is the answer for every id that the asker may not know of, whether it exists or not.
var ErrNoSandbox = fmt.Errorf("%w: sandbox not found", backend.ErrNotFound)

// ErrHeld: the key's sandbox belongs to a process that lives.
var ErrHeld error = &sanitize.Error{Text: "the sandbox is open in another process", Err: record.ErrHeld}

// ErrInTransition: a process that lives has the key's sandbox for now, to make or to remove it.
var ErrInTransition error = &sanitize.Error{
	Text: "another process is opening or removing the sandbox", Err: record.ErrHeld,
}

// ErrOvertaken: this process was taken for dead, or may have been, and another one may have the sandbox.
var ErrOvertaken error = &sanitize.Error{
	Text: "not removing the sandbox, which may have another owner by now", Err: backend.ErrExists,
}

// ErrUnreadable: the engine has a sandbox of that id with damaged labels.
var ErrUnreadable error = &sanitize.Error{Text: "the engine's data of the sandbox is damaged", Err: backend.ErrLost}

// EngineError takes host paths and engine addresses out of the text of a driver's error.
func EngineError(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	clean := sanitize.Message(hostPath.ReplaceAllString(text, "<host path>"))
	if clean == text {
		return err
	}
	return &sanitize.Error{Text: clean, Err: err}
}

// hostPath matches engine addresses and paths of the host in a driver's error.
var hostPath = regexp.MustCompile(`(?:unix|npipe)://[^\s"',;]+|` +
	`(?:/(?:var|run|home|root|tmp|Users|private|etc|opt|usr)/[^\s"',;:]+)`)
