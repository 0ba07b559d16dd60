package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/record"
)

// Environment is the set of packages to install in a sandbox. The zero value installs nothing. See
// docs/guides/packages-and-caches.md.
type Environment = rules.Environment

// EnvironmentBuilder installs environments. Package environment provides an implementation.
type EnvironmentBuilder interface {
	// Recipe must return the id of an environment for Spec.Environment and the hosts for the installation.
	Recipe(e Environment, user string) (id string, hosts sandbox.Egress)
	// Lock must wait until no other known process is installing the recipe.
	Lock(ctx context.Context, id string) (unlock func(), err error)
	// Install must install e in a temporary sandbox. An InstallError names the failed step.
	Install(ctx context.Context, s *Session, e Environment) error
	// Used must note a use of the environment by a sandbox. LastUsed must return the latest use, or zero if unknown.
	Used(id string)
	LastUsed(id string) time.Time
}

// InstallError reports a failed installation of an environment. It wraps Reason.
type InstallError struct {
	Step     string                  // failed step, for example "pip install", "npm install", or "setup[0]"
	ExitCode int                     // exit code of the step's program; 0 if it failed in another way
	Output   string                  // sanitized end of the program's output
	Refused  []sandbox.EgressRefusal // hosts refused by the egress proxy
	Reason   error                   // backend.ErrInvalid (the program failed), backend.ErrTimeout, or backend.ErrQuota
}

// Error returns the end of the output and the refused hosts.
func (e *InstallError) Error() string {
	text := fmt.Sprintf("%s failed: %v", e.Step, e.Reason)
	if e.ExitCode != 0 {
		text = fmt.Sprintf("%s failed: exit code %d", e.Step, e.ExitCode)
	}
	if e.Output != "" {
		text += "\n" + e.Output
	}
	for _, r := range e.Refused {
		text += fmt.Sprintf("\nrefused host: %s (%s)", r.Host, r.Rule)
	}
	return text
}

// Unwrap returns Reason.
func (e *InstallError) Unwrap() error { return e.Reason }

// checkEnvironment checks the environment of a request.
func (m *Manager) checkEnvironment(req Request) error {
	problems := req.Environment.Problems()
	switch {
	case len(problems) > 0:
		return fmt.Errorf("%w: %s: %s", backend.ErrInvalid, problems[0].Field, problems[0].Message)
	case req.Environment.IsZero():
		return nil
	case m.opts.Environments == nil:
		return fmt.Errorf("%w: packages cannot be installed; set Options.Environments", backend.ErrUnsupported)
	case m.opts.Egress == nil:
		return fmt.Errorf("%w: packages cannot be installed without an egress proxy; set Options.Egress",
			backend.ErrUnsupported)
	}
	return nil
}

// make creates the sandbox of a session. If the request's environment is not installed yet, make installs it first.
func (m *Manager) make(ctx context.Context, s *Session, req Request) (backend.Info, error) {
	spec := m.spec(s, req.OnPull)
	if req.Environment.IsZero() {
		return m.b.Create(ctx, spec)
	}
	var hosts sandbox.Egress
	spec.Environment, hosts = m.opts.Environments.Recipe(req.Environment, req.User)
	info, err := m.b.Create(ctx, spec)
	if errors.Is(err, backend.ErrEnvironment) {
		info, err = m.makeFirst(ctx, spec, req, hosts)
	}
	if err == nil {
		m.opts.Environments.Used(spec.Environment)
	}
	return info, err
}

// installTries is how often one sandbox's environment is installed. A pull may replace the image during an
// installation.
const installTries = 2

// makeFirst installs an environment, unless another process has just done so, and then creates the sandbox.
func (m *Manager) makeFirst(ctx context.Context, spec backend.Spec, req Request, hosts sandbox.Egress) (
	backend.Info, error) {
	unlock, err := m.opts.Environments.Lock(ctx, spec.Environment)
	if err != nil {
		return backend.Info{}, err
	}
	defer unlock()
	for range installTries {
		info, err := m.b.Create(ctx, spec)
		if !errors.Is(err, backend.ErrEnvironment) {
			return info, err
		}
		if err := m.install(ctx, spec.Environment, req, hosts); err != nil {
			return backend.Info{}, err
		}
	}
	return m.b.Create(ctx, spec)
}

// install installs an environment in a temporary sandbox without other callers. Then the engine saves the environment.
// If this process dies during the installation, the sandbox is removed like every unfinished sandbox.
func (m *Manager) install(ctx context.Context, id string, asked Request, hosts sandbox.Egress) (err error) {
	limits := asked.Limits
	if limits.MemoryBytes > 0 { // pip and npm may need more memory than the programs of a small sandbox
		usual := m.opts.Defaults.Limits.Merge(backend.DefaultLimits())
		limits.MemoryBytes = max(limits.MemoryBytes, usual.MemoryBytes)
	}
	req, err := m.prepare(Request{
		Image: asked.Image, User: asked.User, Limits: limits, Ceiling: asked.Ceiling, OCIRuntime: asked.OCIRuntime,
		Pull: asked.Pull, Egress: hosts, Isolation: asked.Isolation,
	})
	if err != nil {
		return err
	}
	s := m.newSession(UserKey("environment-"+record.NewID()), req, record.SandboxPrefix+record.NewID())
	rec := s.creating()
	if err := m.keeper.Insert(ctx, rec); err != nil {
		return err
	}
	defer func() {
		s.control.Close()
		err = errors.Join(err, m.keeper.Delete(context.WithoutCancel(ctx), rec))
	}()
	spec := m.spec(s, nil)
	spec.Environment, spec.Building, spec.Mounts = id, true, nil
	s.building = true
	if s.engine, err = m.b.Create(ctx, spec); err != nil {
		return err
	}
	if err := s.connect(ctx); err != nil {
		return err
	}
	if err := s.control.OpenEgress(ctx); err != nil {
		return err
	}
	if err := guarded(func() error { return m.opts.Environments.Install(ctx, s, asked.Environment) }); err != nil {
		return err
	}
	s.control.Close() // to prevent a report of a lost sandbox
	return m.b.CommitEnvironment(ctx, s.engine.ID)
}

// imageEnv returns the image's environment variables, followed by the variables with which programs find installed
// packages and caches. Later entries override earlier ones.
func (s *Session) imageEnv() []string {
	list := slices.Clone(s.engine.ImageEnv)
	made, _ := decodeShape(s.made) // unknown for a sandbox without a record
	if !made.Environment.IsZero() || s.building {
		image := map[string]string{"PATH": sandbox.DefaultPath}
		for _, entry := range list {
			if name, value, ok := strings.Cut(entry, "="); ok {
				image[name] = value
			}
		}
		for name, dirs := range environmentDirs() {
			list = append(list, name+"="+strings.Trim(strings.Replace(dirs, "*", image[name], 1), ":"))
		}
	}
	for _, c := range s.caches() {
		for name, value := range c.Variables(c.Dir()) {
			list = append(list, name+"="+value)
		}
	}
	return list
}

// environmentDirs returns, for each variable, the directories of programs and modules in backend.EnvironmentDir. A star
// stands for the image's value. Programs of packages come after programs of the image. Programs of a setup step come
// before them.
func environmentDirs() map[string]string {
	const dir = backend.EnvironmentDir
	return map[string]string{
		"PATH":       dir + "/bin:*:" + dir + "/python/bin:" + dir + backend.NodeModulesLink + "/.bin",
		"PYTHONPATH": dir + "/python:*",
		"NODE_PATH":  dir + backend.NodeModulesLink + ":*",
	}
}
