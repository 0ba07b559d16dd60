// Package state manages the directory for data with a longer life than a command, such as the records of sandboxes, the
// journals of runs, and the id of the installation.
package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sqlitefile"
	"github.com/workcell-dev/workcell/session/record"
)

// instanceFile contains the random id of all sandboxes of this user's commands.
const instanceFile = "instance"

// stateFile contains the records of sandboxes and the journals of runs.
const stateFile = "state.db"

// Dir is the state directory.
type Dir string

// otherDir is the hint if this user may not use the state directory.
const otherDir = "run `workcell --state-dir DIR …` with a directory that you own"

// Locate returns the state directory and creates it if necessary. It is the directory in flag, WORKCELL_STATE_DIR, or
// workcell below the XDG state directory.
func Locate(env environ.Lookup, flag string) (Dir, error) {
	dir := cmp.Or(flag, env.Get("WORKCELL_STATE_DIR"))
	if dir == "" {
		base, err := env.StateHome()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(base, "workcell")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", hint.New(hint.Usage, fmt.Errorf("cannot create the state directory: %w", err), otherDir)
	}
	return Dir(dir), nil
}

// File returns the path of the state file.
func (d Dir) File() string { return d.Path(stateFile) }

// Path returns the path of a file in the directory.
func (d Dir) Path(name ...string) string {
	return filepath.Join(append([]string{string(d)}, name...)...)
}

// Hint returns a remedy for an unusable state file or database. It is empty for other errors.
func Hint(err error) string {
	switch {
	case errors.Is(err, sqlitefile.ErrCorrupt), errors.Is(err, sqlitefile.ErrForeign):
		return "stop all other workcell processes, then move the file away; a new file with records of the existing " +
			"sandboxes is created, but the journals of runs are lost"
	case errors.Is(err, sqlitefile.ErrNewer):
		return "use the newer version of workcell that wrote it, or another --state-dir"
	case errors.Is(err, sqlitefile.ErrReadOnly):
		return otherDir
	case errors.Is(err, sqlitefile.ErrFull):
		return "free some space: `workcell sandbox ls` and `workcell sandbox rm` work without the file"
	case errors.Is(err, sqlitefile.ErrBusy):
		return "try again; if it fails again, a process that uses the file is suspended"
	}
	return sharedHint(err)
}

// instanceWith returns this installation's id. The first command creates it. The id is stored in the instance file and,
// if the command opens records, in the state file, to keep the sandboxes if one of the files is lost.
// store may be nil.
func (d Dir) instanceWith(ctx context.Context, store Records) (string, error) {
	if store == nil {
		return d.instanceAlone()
	}
	known, err := store.Instance(ctx)
	if err != nil {
		return "", err
	}
	id, err := d.instance(cmp.Or(known, record.NewID()))
	if err != nil {
		return "", err
	}
	if known == "" {
		if err := store.SetInstance(ctx, id); err != nil {
			return "", err
		}
		if known, err = store.Instance(ctx); err != nil {
			return "", err
		}
	}
	if id != known {
		return "", hint.New(hint.Failed,
			fmt.Errorf("the state file belongs to instance %s, but %s contains %s", known, instanceFile, id),
			"remove "+instanceFile+" to use the state file's instance, or move "+stateFile+" away (both in the state directory)")
	}
	return id, nil
}

// instanceAlone returns the id for a command without records. If a state file exists, it may contain an id that the
// instance file has lost, so instanceAlone then does not store a new id.
func (d Dir) instanceAlone() (string, error) {
	if _, err := os.Lstat(d.File()); err != nil {
		return d.instance(record.NewID())
	}
	id, err := d.readInstance()
	if errors.Is(err, fs.ErrNotExist) {
		return record.NewID(), nil
	}
	return id, err
}

// instance returns the id in the instance file. If the file is missing, instance creates it with fresh.
func (d Dir) instance(fresh string) (string, error) {
	id, err := d.readInstance()
	if !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	if err := d.createInstance(fresh); err != nil {
		return "", err
	}
	return d.readInstance()
}

// readInstance returns the id in the instance file.
func (d Dir) readInstance() (string, error) {
	path := d.Path(instanceFile)
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrPermission) {
		err = hint.New(hint.Failed, err, otherDir)
	}
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(raw))
	if !instanceID.MatchString(id) {
		// A new id would orphan the sandboxes with the old id, so the user must decide.
		return "", hint.New(hint.Failed, fmt.Errorf("%s does not contain an instance ID", path),
			"remove the file; it is recreated with the ID in the state file, or with a new ID, in which case running "+
				"sandboxes are no longer listed")
	}
	return id, nil
}

// createInstance writes an id. If several commands start at the same time, they agree on one id, because the file is
// created atomically and never replaced.
func (d Dir) createInstance(id string) error {
	tmp, err := os.CreateTemp(string(d), instanceFile+"-*")
	if err != nil {
		return hint.New(hint.Failed, fmt.Errorf("cannot write to the state directory: %w", err), otherDir)
	}
	defer os.Remove(tmp.Name()) // the link keeps the file
	_, err = tmp.WriteString(id + "\n")
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Link(tmp.Name(), d.Path(instanceFile)); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// instanceID matches the format of record.NewID, with other lengths allowed.
var instanceID = regexp.MustCompile(`\A[a-z0-9]{16,64}\z`)
