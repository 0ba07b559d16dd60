package transfer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// collectTimeout is the timeout of Collect at the end of a run: 256 MiB twice at a few MB/s.
const collectTimeout = 3 * time.Minute

// Made is the result of a run in a sandbox.
type Made struct {
	Outputs patch.Tree   // by path relative to the workspace
	Missing []string     // missing optional outputs
	Special []string     // pipes, sockets, devices, and leased files with the name of an output; they are not collected
	Unread  []string     // unreadable and incomplete directories below **, which may contain more outputs
	Patch   *patch.Patch // changes since the sandbox began; nil if it began without a directory
}

// MissingError reports missing required outputs.
type MissingError struct {
	First     int      // index of the first missing output
	Outputs   []string // all missing outputs
	NoSandbox bool     // the run has no shared sandbox
}

// Error returns a one-line message.
func (e *MissingError) Error() string {
	if e.NoSandbox {
		return "the run has no shared sandbox, so these outputs are missing: " + strings.Join(e.Outputs, ", ")
	}
	return fmt.Sprintf("missing outputs: %s not found in the workspace (add ? at the end for optional outputs)",
		strings.Join(e.Outputs, ", "))
}

// Collect reads the files with names matching the patterns in want (`outputs:`) and the changes since began from a
// sandbox. began may be nil. If box is nil, every required output is missing. The result is valid even if Collect
// returns an error. The error is a [*MissingError] or names the unreadable outputs. If outputs exceed a limit and the
// others are readable, the error wraps backend.ErrTooLarge.
func Collect(ctx context.Context, box *session.Session, want []string, began *Snapshot) (m Made, err error) {
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	switch {
	case box == nil:
		m.Patch = began.untouched()
	case began != nil:
		if m.Patch, err = began.Diff(ctx, box); err != nil {
			err = fmt.Errorf("cannot list the changes in the workspace: %w", err)
		}
	}
	if len(want) == 0 {
		return m, err
	}
	globs := rules.Globs(want)
	var tooLarge error // other errors have priority, because these outputs can be collected after a repair
	if box != nil {
		found, omitted, readErr := box.ReadTree(ctx, globs.Enter, globs.Match)
		if readErr != nil {
			return m, errors.Join(err, fmt.Errorf("cannot read the outputs: %w", readErr))
		}
		m.Outputs = found
		lost := globs.Lost(slices.Collect(maps.Keys(found)))
		for _, o := range omitted {
			switch {
			case sandbox.Special(o.Reason):
				m.Special = append(m.Special, o.Path)
			case !lost(o.Path):
				m.Unread = append(m.Unread, o.Path)
			case sandbox.Repairable(o.Reason):
				err = errors.Join(err, fmt.Errorf("cannot collect output %s: %s", o.Path, o.Reason))
			default:
				tooLarge = errors.Join(tooLarge, fmt.Errorf("cannot collect output %s: %w: %s", o.Path,
					backend.ErrTooLarge, o.Reason))
			}
		}
	}
	first, missing, optional := globs.Missing(slices.Collect(maps.Keys(m.Outputs)))
	m.Missing = optional
	if err = cmp.Or(err, tooLarge); err == nil && len(missing) > 0 {
		err = &MissingError{First: first, Outputs: missing, NoSandbox: box == nil}
	}
	return m, err
}

// Shared returns the shared sandbox of a run's steps and agents. If the run has no such sandbox but exactly one other
// sandbox, Shared returns the other sandbox. Otherwise it returns nil.
func Shared(m *session.Manager, run session.Run) *session.Session {
	if s, err := m.Get(run.Key(record.DefaultName)); err == nil {
		return s
	}
	if open := m.InScope(run.Scope()); len(open) == 1 {
		return open[0]
	}
	return nil
}
