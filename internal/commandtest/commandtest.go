// Package commandtest builds the workcell command for tests that run it in the same way as a user does.
package commandtest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// Variable contains the path of an already built command. `make test` sets it, because linking the command takes
// several seconds.
const Variable = "WORKCELL_TEST_COMMAND"

// Build returns the path of the built command. If Variable is not set, Build compiles the command into dir.
func Build(dir string) (string, error) {
	if path := os.Getenv(Variable); path != "" {
		return path, nil
	}
	path := filepath.Join(dir, "workcell")
	if runtime.GOOS == "windows" {
		path += ".exe"
	}
	out, err := exec.Command("go", "build", "-o", path, "github.com/workcell-dev/workcell/cmd/workcell").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("building the command: %w\n%s", err, out)
	}
	return path, nil
}
