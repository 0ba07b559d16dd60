// Package environ reads environment variables, those of this process or of a test.
package environ

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/workcell-dev/workcell/internal/hint"
)

// Lookup returns the value of a variable and whether it is set, as os.LookupEnv does. Only commands read the
// environment; library packages get values.
type Lookup func(name string) (string, bool)

// Of returns a Lookup of the given variables and no others.
func Of(vars map[string]string) Lookup {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

// Get returns the value of a variable, empty when it is not set.
func (l Lookup) Get(name string) string {
	v, _ := l(name)
	return v
}

// First returns the first variable of names that has a value.
func (l Lookup) First(names ...string) (name, value string) {
	for _, n := range names {
		if v := l.Get(n); v != "" {
			return n, v
		}
	}
	return "", ""
}

// StateHome returns the directory where a user's programs keep state.
func (l Lookup) StateHome() (string, error) {
	dir, err := l.xdg("XDG_STATE_HOME", ".local", "state")
	if err != nil {
		return "", hint.New(hint.Usage, fmt.Errorf("no state directory: %w", err), "set HOME, or pass --state-dir DIR")
	}
	return dir, nil
}

// ConfigHome returns the directory where a user's programs have their configuration.
func (l Lookup) ConfigHome() (string, error) { return l.xdg("XDG_CONFIG_HOME", ".config") }

// xdg returns the directory that a variable of the XDG specification names, else one below the user's own.
func (l Lookup) xdg(variable string, below ...string) (string, error) {
	if dir := l.Get(variable); filepath.IsAbs(dir) { // the specification says to ignore a relative one
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(append([]string{home}, below...)...), nil
}
