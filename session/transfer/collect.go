package transfer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// collectTimeout bounds Collect, which the end of a run waits for: 256 MiB twice, at a few MB/s.
const collectTimeout = 3 * time.Minute

// Made is what was made in a sandbox.
type Made struct {
	Outputs patch.Tree   // by path below the work directory
	Missing []string     // outputs that may be missing, and are
	Special []string     // pipes, sockets, devices, and leased files that match an output: they are not collected
	Patch   *patch.Patch // what changed since the sandbox began; nil when it began with no directory
}

// MissingError reports outputs that are not there.
type MissingError struct {
	First     int      // index of the first of them
	Outputs   []string // all of them
	NoSandbox bool     // the run has no sandbox that its steps share
}

// Error returns one line.
func (e *MissingError) Error() string {
	if e.NoSandbox {
		return "the run has no shared sandbox, so these outputs are missing: " + strings.Join(e.Outputs, ", ")
	}
	return fmt.Sprintf("missing outputs: %s not found in the workspace (add ? at the end for optional outputs)", strings.Join(e.Outputs, ", "))
}

// Collect reads from a sandbox the files that match want, the patterns of `outputs:`, and the changes since began,
// which may be nil. Without a sandbox (box is nil) every required output is missing. The result is valid even with an
// error, which is a [*MissingError] or has the names of the outputs that cannot be read.
func Collect(ctx context.Context, box *session.Session, want []string, began *Snapshot) (m Made, err error) {
	ctx, cancel := context.WithTimeout(ctx, collectTimeout)
	defer cancel()
	switch {
	case box == nil:
		m.Patch = began.Untouched()
	case began != nil:
		if m.Patch, err = began.Diff(ctx, box); err != nil {
			err = fmt.Errorf("cannot list the changes in the workspace: %w", err)
		}
	}
	if len(want) == 0 {
		return m, err
	}
	globs := rules.Globs(want)
	if box != nil {
		found, omitted, readErr := box.ReadTree(ctx, globs.Enter, globs.Match)
		if readErr != nil {
			return m, errors.Join(err, fmt.Errorf("cannot read the outputs: %w", readErr))
		}
		m.Outputs = found
		for _, o := range omitted {
			switch {
			case !globs.Match(o.Path):
			case o.Reason == sandbox.SpecialFile, o.Reason == sandbox.LeasedFile:
				m.Special = append(m.Special, o.Path)
			default:
				err = errors.Join(err, fmt.Errorf("cannot collect output %s: %s", o.Path, o.Reason))
			}
		}
	}
	missing, optional := globs.Missing(slices.Collect(maps.Keys(m.Outputs)))
	m.Missing = globs.Pick(optional)
	if err == nil && len(missing) > 0 {
		err = &MissingError{First: missing[0], Outputs: globs.Pick(missing), NoSandbox: box == nil}
	}
	return m, err
}

// Shared returns the sandbox that the steps and agents of a run share, else the only one that it has; nil when it has
// none, or several others.
func Shared(m *session.Manager, run session.Run) *session.Session {
	if s, err := m.Get(run.Key(record.DefaultName)); err == nil {
		return s
	}
	if open := m.InScope(run.Scope()); len(open) == 1 {
		return open[0]
	}
	return nil
}
