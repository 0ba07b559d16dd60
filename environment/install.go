package environment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

const (
	dir = backend.EnvironmentDir
	// temp holds what installers unpack, where there is more room than in /tmp, and from where it can be moved.
	temp = dir + "/.tmp"
)

// Bounds of an InstallError's output.
const (
	lastLines = 20
	lastBytes = 2000
)

// step is a command of an installation.
type step struct {
	name string
	argv []string
	line string // of shell, in place of argv
	env  map[string]string
}

// Install runs the lines of setup and installs packages, in a sandbox that was made for that.
func (b *Builder) Install(ctx context.Context, s *session.Session, e session.Environment) error {
	ctx, cancel := context.WithTimeoutCause(ctx, b.o.Timeout, errTimeout)
	defer cancel()
	for _, st := range b.steps(e) {
		if err := b.run(ctx, s, st); err != nil {
			return err
		}
	}
	return nil
}

// errTimeout is why a context of Install ends.
var errTimeout = errors.New("the installation took too long")

// steps returns the commands by which an environment is installed.
func (b *Builder) steps(e session.Environment) []step {
	list := []step{{name: "creating a directory", argv: []string{"mkdir", "-p", temp, dir + "/bin"}}}
	for i, line := range e.Setup {
		list = append(list, step{name: fmt.Sprintf("setup[%d]", i), line: line})
	}
	if len(e.Pip) > 0 {
		list = append(list, step{name: "pip install", argv: b.pip(e.Pip)})
	}
	if len(e.Npm) > 0 {
		list = append(list, step{name: "npm install", argv: b.npm(e.Npm), env: map[string]string{"NODE_ENV": "production"}})
	}
	return append(list, step{name: "removing temporary files", argv: []string{"rm", "-rf", temp}})
}

// pip installs wheels and nothing else: no code of a package runs.
func (b *Builder) pip(packages []string) []string {
	argv := []string{
		"python3", "-m", "pip", "install", "--only-binary=:all:", "--target", dir + "/python", "--no-input", "--no-cache-dir",
		"--disable-pip-version-check", "--no-compile", "--progress-bar=off", "--retries=2",
	}
	if s := b.index[pypi]; s.address != "" {
		argv = append(argv, "--index-url", s.address)
		if s.plain != "" {
			argv = append(argv, "--trusted-host", s.plain)
		}
	}
	return append(append(argv, "--"), packages...)
}

// npm installs packages without running their scripts.
func (b *Builder) npm(packages []string) []string {
	argv := []string{
		"npm", "install", "--prefix", dir, "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--no-package-lock",
		"--cache", temp + "/npm", "--loglevel=error", "--fetch-retries=2",
	}
	if s := b.index[npmjs]; s.address != "" {
		argv = append(argv, "--registry", s.address)
	}
	return append(append(argv, "--"), packages...)
}

// run runs a step. A failure of it is a session.InstallError; any other error is of the sandbox.
func (b *Builder) run(ctx context.Context, s *session.Session, st step) error {
	env := map[string]string{"TMPDIR": temp, "HOME": temp}
	if st.line != "" {
		delete(env, "HOME") // what lies there is nobody's, but the lines of a setup may count on it
	}
	maps.Copy(env, st.env)
	res, err := s.Exec(ctx, sandbox.ExecRequest{
		Argv: st.argv, Command: st.line, Env: env, Timeout: min(b.o.Timeout, sandbox.MaxExecTimeout), TailBytes: 16 << 10,
	})
	failed := &session.InstallError{Step: st.name, Refused: res.Refused, Reason: backend.ErrInvalid}
	var launch *sandbox.LaunchError
	switch {
	case errors.As(err, &launch):
		failed.Output = launch.Message
		return failed
	case err != nil && context.Cause(ctx) == errTimeout: //nolint:errorlint // it is a cause, which nothing wraps
		failed.Output, failed.Reason = errTimeout.Error(), backend.ErrTimeout
		return failed
	case err != nil:
		return err
	}
	switch res.Status {
	case sandbox.ExecCompleted:
		if res.ExitCode == 0 && res.Signal == "" {
			return nil
		}
		failed.ExitCode = res.ExitCode
	case sandbox.ExecTimedOut:
		failed.Reason = backend.ErrTimeout
	}
	failed.Output = lastWords(res)
	if res.Limit != "" {
		failed.Reason, failed.Output = backend.ErrQuota, failed.Output+"\n"+res.Limit
	}
	return failed
}

// lastWords returns the last lines of what a command wrote on standard error, or on standard output where that is
// nothing.
func lastWords(res sandbox.ExecResult) string {
	text := strings.TrimSpace(sanitize.Text(string(res.Stderr.Bytes())))
	if text == "" {
		text = strings.TrimSpace(sanitize.Text(string(res.Stdout.Bytes())))
	}
	lines := strings.Split(text, "\n")
	text = strings.Join(lines[max(0, len(lines)-lastLines):], "\n")
	if len(text) > lastBytes {
		text = "…" + strings.ToValidUTF8(text[len(text)-lastBytes:], "")
	}
	return text
}
