package e2e

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/e2e/commandtest"
)

// root returns the top of the checkout.
func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// buildCLI builds the command and returns its path.
func buildCLI(t *testing.T) string {
	t.Helper()
	path, err := commandtest.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// outcome is what a process left behind.
type outcome struct {
	code           int
	stdout, stderr string
}

// runCLI runs the command at the top of the checkout with the given extra environment.
func runCLI(t *testing.T, bin string, env []string, args ...string) outcome {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), bin, args...)
	cmd.Dir = root(t)
	cmd.Env = append(append(os.Environ(), "WORKCELL_REAPER=off"), env...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatalf("workcell %s: %v", strings.Join(args, " "), err)
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}
