package rules

import (
	"fmt"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/hint"
)

// Limits for Environment.Setup.
const (
	maxSetupLines = 100
	maxSetupBytes = 64 << 10
)

// Environment describes what is installed in a sandbox. It is installed once for all sandboxes with the same
// environment with the same image and user. The zero value installs nothing.
type Environment struct {
	Pip   []string `json:"pip,omitempty"`   // packages from the Python package index, with or without versions
	Npm   []string `json:"npm,omitempty"`   // packages from the npm registry, with or without versions
	Setup []string `json:"setup,omitempty"` // shell commands, which run before packages are installed
	// Network contains the hosts available to Setup, pip, and npm, in addition to the package registries.
	Network Hosts `json:"network,omitzero"`
}

// IsZero reports whether there is nothing to install.
func (e Environment) IsZero() bool { return len(e.Pip) == 0 && len(e.Npm) == 0 && len(e.Setup) == 0 }

// Equal reports whether two environments are the same.
func (e Environment) Equal(o Environment) bool {
	return slices.Equal(e.Pip, o.Pip) && slices.Equal(e.Npm, o.Npm) && slices.Equal(e.Setup, o.Setup) &&
		e.Network.Equal(o.Network)
}

// Clone returns a deep copy.
func (e Environment) Clone() Environment {
	return Environment{
		Pip: slices.Clone(e.Pip), Npm: slices.Clone(e.Npm), Setup: slices.Clone(e.Setup),
		Network: Hosts{Allow: slices.Clone(e.Network.Allow), Deny: slices.Clone(e.Network.Deny)},
	}
}

// Problems returns the problems with the environment. Their fields have the same names as in files.
func (e Environment) Problems() (found hint.Problems) {
	checkPackages(&found, "pip_packages", e.Pip, pipForm,
		"write a name with or without versions, for example requests>=2.31,<3")
	checkPackages(&found, "npm_packages", e.Npm, npmForm,
		"write a name with or without a version, for example lodash@^4.17.0 or @types/node@20")
	size := 0
	for i, line := range e.Setup {
		size += len(line)
		if strings.TrimSpace(line) == "" || strings.ContainsRune(line, 0) {
			found.Add(fmt.Sprintf("setup.run[%d]", i), "remove it", "a line of setup.run is empty or contains NUL")
		}
	}
	if len(e.Setup) > maxSetupLines || size > maxSetupBytes {
		const format = "setup.run has %d lines of %d bytes, the limit is %d of %d"
		found.Add("setup.run", "build an image", format, len(e.Setup), size, maxSetupLines, maxSetupBytes)
	}
	found.AddBelow("setup.network.", e.Network.Problems())
	if e.IsZero() && (len(e.Network.Allow) > 0 || len(e.Network.Deny) > 0) {
		found.Add("setup.network", "add setup.run, pip_packages or npm_packages",
			"setup.network requires packages or commands to install")
	}
	return found
}
