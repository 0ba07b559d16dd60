package environment

import (
	"cmp"
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
	// temp is the directory for unpacked files. It has more room than /tmp, and files can be moved from it without
	// copying.
	temp = dir + "/.tmp"
)

// Limits of an InstallError's output.
const (
	lastLines = 20
	lastBytes = 2000
)

// step is a command of an installation.
type step struct {
	name string
	argv []string
	line string // shell command; replaces argv
	env  map[string]string
}

// Install runs the setup commands and installs the packages in a sandbox created for this purpose.
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

// errTimeout is the cause of the end of Install's context at the timeout.
var errTimeout = errors.New("the installation took too long")

// steps returns the installation commands of an environment.
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

// pip returns the command for installing Python packages. It installs only wheels, to avoid running code of packages.
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

// npm returns the command for installing npm packages without running their scripts.
func (b *Builder) npm(packages []string) []string {
	argv := []string{
		"npm", "install", "--prefix", dir, "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier",
		"--no-package-lock",
		"--cache", temp + "/npm", "--loglevel=error", "--fetch-retries=2",
	}
	if s := b.index[npmjs]; s.address != "" {
		argv = append(argv, "--registry", s.address)
	}
	return append(append(argv, "--"), packages...)
}

// run runs a step. If the step fails, the error is a session.InstallError. Other errors concern the sandbox.
func (b *Builder) run(ctx context.Context, s *session.Session, st step) error {
	env := map[string]string{"TMPDIR": temp, "HOME": temp}
	if st.line != "" {
		delete(env, "HOME") // setup commands may need the default HOME; nothing there is kept
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
	case err != nil && context.Cause(ctx) == errTimeout: //nolint:errorlint // nothing wraps a cause
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

// lastWords returns the last lines of a command's standard error. If it is empty, lastWords uses standard output.
func lastWords(res sandbox.ExecResult) string {
	text := cmp.Or(strings.TrimSpace(sanitize.Text(string(res.Stderr.Bytes()))),
		strings.TrimSpace(sanitize.Text(string(res.Stdout.Bytes()))))
	lines := strings.Split(text, "\n")
	text = strings.Join(lines[max(0, len(lines)-lastLines):], "\n")
	if len(text) > lastBytes {
		text = "…" + strings.ToValidUTF8(text[len(text)-lastBytes:], "")
	}
	return text
}
