// Package environ reads the environment variables of this process or of a test.
package environ

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/workcell-dev/workcell/internal/hint"
)

// Lookup returns the value of a variable and whether it is set, like os.LookupEnv. Only commands read the environment.
// Library packages receive values.
type Lookup func(name string) (string, bool)

// Of returns a Lookup with only the given variables.
func Of(vars map[string]string) Lookup {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

// Get returns the value of a variable, or an empty string if it is not set.
func (l Lookup) Get(name string) string {
	v, _ := l(name)
	return v
}

// First returns the first variable with a value.
func (l Lookup) First(names ...string) (name, value string) {
	for _, n := range names {
		if v := l.Get(n); v != "" {
			return n, v
		}
	}
	return "", ""
}

// StateHome returns the directory for the state of the user's programs.
func (l Lookup) StateHome() (string, error) {
	dir, err := l.xdg("XDG_STATE_HOME", ".local", "state")
	if err != nil {
		return "", hint.New(hint.Usage, fmt.Errorf("no state directory: %w", err), "set HOME, or pass --state-dir DIR")
	}
	return dir, nil
}

// ConfigHome returns the directory for the configuration of the user's programs.
func (l Lookup) ConfigHome() (string, error) { return l.xdg("XDG_CONFIG_HOME", ".config") }

// xdg returns the directory in a variable of the XDG specification, or else a default directory in the user's home
// directory.
func (l Lookup) xdg(variable string, below ...string) (string, error) {
	if dir := l.Get(variable); filepath.IsAbs(dir) { // the specification requires to ignore relative paths
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(append([]string{home}, below...)...), nil
}
