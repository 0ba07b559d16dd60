package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/commandtest"
)

var must = checktest.Must

// root returns the root directory of the repository.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("..")
	must(t, err)
	return dir
}

// buildCLI builds the command and returns the path.
func buildCLI(t *testing.T) string {
	t.Helper()
	path, err := commandtest.Build(t.TempDir())
	must(t, err)
	return path
}

// runCLI runs the command in the repository's root directory with additional environment variables.
func runCLI(t *testing.T, bin string, env []string, args ...string) rig.Result {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), bin, args...)
	cmd.Dir = root(t)
	cmd.Env = append(append(os.Environ(), "WORKCELL_REAPER=off"), env...)
	return rig.Run(t, cmd)
}
