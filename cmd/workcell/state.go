package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/sqlitefile"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/sqlitestore"
	"github.com/workcell-dev/workcell/workflow/sqlitejournal"
)

// instanceFile holds the random id that marks every sandbox of this user's commands as theirs.
const instanceFile = "instance"

// stateFile holds the records of sandboxes and the journals of runs.
const stateFile = "state.db"

// stateUse says what a command wants with the records of sandboxes.
type stateUse int

const (
	stateNeeded stateUse = iota // nothing may be made that is not recorded
	stateWanted                 // without them the labels on the sandboxes must do
	stateUnused
)

// statePath gives the place of the state file.
func (a *app) statePath() (string, error) {
	dir, err := a.stateDir()
	return filepath.Join(dir, stateFile), err
}

// openStore opens the records of sandboxes; nil when the command does without.
func (a *app) openStore(ctx context.Context, use stateUse) (*sqlitestore.Store, error) {
	if use == stateUnused {
		return nil, nil
	}
	path, err := a.statePath()
	if err != nil {
		return nil, err
	}
	store, err := sqlitestore.Open(ctx, path)
	if err != nil && use == stateWanted && ctx.Err() == nil {
		a.withoutRecords(err)
		return nil, nil
	}
	return store, err
}

// withoutRecords says that a command goes on without the records: whoever has a full disk, a directory that cannot be
// written or a damaged file must still be able to see and remove sandboxes.
func (a *app) withoutRecords(err error) {
	fmt.Fprintf(a.stderr, "workcell: going by the sandboxes' labels alone: %s\n", sanitize.Line(err.Error()))
}

// openJournal opens the journals of runs.
func (a *app) openJournal(ctx context.Context) (*sqlitejournal.Journal, error) {
	path, err := a.statePath()
	if err != nil {
		return nil, err
	}
	return sqlitejournal.Open(ctx, path)
}

// stateHint says what to do about a state file that cannot be used; empty for other errors.
func stateHint(err error) string {
	switch {
	case errors.Is(err, sqlitefile.ErrCorrupt), errors.Is(err, sqlitefile.ErrForeign):
		return "when no other workcell is running, move the file away: a new one is made, with records of the sandboxes that are there; the journals of runs are lost with the old one"
	case errors.Is(err, sqlitefile.ErrNewer):
		return "use the newer workcell that wrote it, or another --state-dir"
	case errors.Is(err, sqlitefile.ErrReadOnly):
		return "let this user write to it, or pass --state-dir DIR"
	case errors.Is(err, sqlitefile.ErrFull):
		return "free some space: `workcell sessions ls` and `workcell sessions rm` work without the file"
	case errors.Is(err, sqlitefile.ErrBusy):
		return "try again; if it stays, a process that uses the file is stopped"
	}
	return ""
}

// stateDir gives the directory for what must outlive a command, made if need be: --state-dir, WORKCELL_STATE_DIR, or
// workcell below the XDG state directory.
func (a *app) stateDir() (string, error) {
	dir := a.stateDirFlag
	if dir == "" {
		dir = a.env.Get("WORKCELL_STATE_DIR")
	}
	if dir == "" {
		base, err := a.env.StateHome()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(base, "workcell")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", usageError(fmt.Errorf("cannot make the state directory: %w", err), "pass --state-dir DIR")
	}
	return dir, nil
}

// instanceOf gives this installation's id. The first command makes it, and the state file, where a command has that, knows
// it too: when one of the two is lost, the sandboxes are not.
func (a *app) instanceOf(ctx context.Context, store *sqlitestore.Store) (string, error) {
	if store == nil {
		return a.instanceAlone()
	}
	known, err := store.Instance(ctx)
	if err != nil {
		return "", err
	}
	id, err := a.instance(cmp.Or(known, session.NewID()))
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
		return "", fail(exitFailed, fmt.Errorf("the state file is about the sandboxes of instance %s, and %s says %s", known, instanceFile, id),
			"remove the file "+instanceFile+" to go on with those, or move "+stateFile+" away; both are in the state directory")
	}
	return id, nil
}

// instanceAlone gives the id to a command that has no records. Where there is a state file, that may know an id which the
// instance file has lost, so no other is written down.
func (a *app) instanceAlone() (string, error) {
	path, err := a.statePath()
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(path); err != nil {
		return a.instance(session.NewID())
	}
	id, err := readInstance(filepath.Join(filepath.Dir(path), instanceFile))
	if errors.Is(err, fs.ErrNotExist) {
		return session.NewID(), nil
	}
	return id, err
}

// instance gives the id that the instance file holds. Where there is none, it is made with fresh.
func (a *app) instance(fresh string) (string, error) {
	dir, err := a.stateDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, instanceFile)
	id, err := readInstance(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	if err := createInstance(dir, path, fresh); err != nil {
		return "", err
	}
	return readInstance(path)
}

func readInstance(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	id := strings.TrimSpace(string(raw))
	if !isInstanceID(id) {
		// Guessing a new id would orphan the sandboxes that carry the old one, so a person has to decide.
		return "", fail(exitFailed, fmt.Errorf("%s does not hold an instance id", path),
			"remove the file: it is made again with what the state file knows, or with a new id, and then sandboxes that are running now are no longer listed")
	}
	return id, nil
}

// createInstance writes an id. Commands that start at the same moment agree on one: the file appears whole and is
// never replaced.
func createInstance(dir, path, id string) error {
	tmp, err := os.CreateTemp(dir, instanceFile+"-*")
	if err != nil {
		return fmt.Errorf("cannot write to the state directory: %w", err)
	}
	defer os.Remove(tmp.Name()) // the link keeps the file
	_, err = tmp.WriteString(id + "\n")
	if err = errors.Join(err, tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	if err := os.Link(tmp.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

// isInstanceID tells whether s looks as session.NewID makes ids, with room for other lengths.
func isInstanceID(s string) bool {
	ok := len(s) >= 16 && len(s) <= 64
	for _, r := range s {
		ok = ok && (r >= 'a' && r <= 'z' || r >= '0' && r <= '9')
	}
	return ok
}
