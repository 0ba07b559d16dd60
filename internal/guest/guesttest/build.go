package guesttest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/workcell-dev/workcell/internal/guest/embed"
)

// Build builds the guest agent from source into dir, for tests of the guest agent, and returns the binary's path.
func Build(dir string) (string, error) {
	out := filepath.Join(dir, "workcell-guest")
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w -X main.version=test", "-o", out,
		"github.com/workcell-dev/workcell/cmd/workcell-guest")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the guest: %w\n%s", err, msg)
	}
	return out, os.Chmod(out, embed.Mode)
}
