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

// versionTime bounds the question for a version; one CLI takes some seconds to begin.
const versionTime = time.Minute

// Version returns the version of a CLI in a sandbox, as it tells by --version. One that is not there is
// backend.ErrNotFound, one that does not tell backend.ErrUnsupported.
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
