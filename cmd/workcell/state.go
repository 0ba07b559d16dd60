package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/workcell-dev/workcell/session"
)

// instanceFile holds the random id that marks every sandbox of this user's commands as theirs.
const instanceFile = "instance"

// stateDir gives the directory for what must outlive a command, made if need be: --state-dir, WORKCELL_STATE_DIR, or
// workcell below the XDG state directory.
func (a *app) stateDir() (string, error) {
	dir := a.stateDirFlag
	if dir == "" {
		dir = a.env.get("WORKCELL_STATE_DIR")
	}
	if dir == "" {
		base, err := a.xdgState()
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

// xdgState is where a user's programs keep state.
func (a *app) xdgState() (string, error) {
	if base := a.env.get("XDG_STATE_HOME"); filepath.IsAbs(base) { // the XDG specification says to ignore a relative one
		return base, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", usageError(fmt.Errorf("no state directory: %w", err), "set HOME, or pass --state-dir DIR")
	}
	return filepath.Join(home, ".local", "state"), nil
}

// instance gives this installation's id. The first command makes it.
func (a *app) instance() (string, error) {
	dir, err := a.stateDir()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, instanceFile)
	id, err := readInstance(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return id, err
	}
	if err := createInstance(dir, path); err != nil {
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
			"remove the file to begin with a new id; sandboxes that are running now will no longer be listed")
	}
	return id, nil
}

// createInstance writes a new id. Commands that start at the same moment agree on one: the file appears whole and is
// never replaced.
func createInstance(dir, path string) error {
	tmp, err := os.CreateTemp(dir, instanceFile+"-*")
	if err != nil {
		return fmt.Errorf("cannot write to the state directory: %w", err)
	}
	defer os.Remove(tmp.Name()) // the link keeps the file
	_, err = tmp.WriteString(session.NewID() + "\n")
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
