package executor

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// versionTime is the maximum time to get a version. One CLI needs some seconds to start.
const versionTime = time.Minute

// Version returns the version of a CLI in a sandbox from the output of --version. It returns backend.ErrNotFound if the
// CLI is missing, and backend.ErrUnsupported if the CLI prints no version.
func Version(ctx context.Context, s *session.Session, program string) (string, error) {
	res, err := s.Exec(ctx, sandbox.ExecRequest{Argv: []string{program, "--version"}, Timeout: versionTime, TailBytes: stderrTail, HeadBytes: stderrTail})
	if err != nil {
		return "", err
	}
	version := regexp.MustCompile(`\b\d+\.\d+(\.\d+)?(-[0-9A-Za-z.]{1,30})?\b`).Find(res.Stdout.Bytes())
	if version == nil || res.ExitCode != 0 {
		return "", fmt.Errorf("%s reports no version: exit code %d: %w", program, res.ExitCode, backend.ErrUnsupported)
	}
	return string(version), nil
}
