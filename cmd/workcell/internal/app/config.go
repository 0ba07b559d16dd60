package app

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/config"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/engines"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/session"
)

// load reads the configuration.
func (a *App) load() (*config.Config, error) {
	c, err := config.Load(config.Options{
		Env: a.opts.Env, File: a.opts.Config, Flags: a.configFlags(), Backends: engines.Names,
	})
	if h := hint.Of(err); h != nil && h.Kind == hint.Usage {
		return nil, err
	}
	if err != nil {
		return nil, Fail(ExitInvalid, err,
			"see docs/reference/configuration.md; to show current settings, run `workcell config show --origin`")
	}
	return c, a.checkMounts(c.Mounts)
}

// defaults returns the default settings of sandboxes. A resumed run keeps the original defaults. Otherwise, they come
// from the configuration.
func (a *App) defaults(c *config.Config) session.Defaults {
	if d := a.opts.Defaults; d != nil {
		resumed := *d
		resumed.Isolation = d.Isolation.Stricter(c.Isolation)
		return resumed
	}
	return session.Defaults{
		Limits: c.Limits, ExecTimeout: c.ExecTimeout, OCIRuntime: c.OCIRuntime, Images: c.Images, Mounts: c.Mounts,
		Isolation: c.Isolation,
	}
}

// checkMounts refuses mounts of the user's keys and of Workcell's own directories. Code with read access could learn
// about other sandboxes. Code with write access would get the command's privileges.
func (a *App) checkMounts(list []backend.Mount) error {
	if len(list) == 0 {
		return nil
	}
	dir, err := a.stateDir()
	if err != nil {
		return err
	}
	held := []string{string(dir)}
	if home, err := a.opts.Env.ConfigHome(); err == nil { // a user without a home directory has no configuration
		held = append(held, filepath.Join(home, "workcell"))
	}
	if home, err := os.UserHomeDir(); err == nil {
		held = append(held, filepath.Join(home, ".ssh"))
	}
	for _, m := range list {
		if _, err := os.Stat(m.Source); errors.Is(err, fs.ErrNotExist) {
			// Drivers do not show the path to models, so print it here.
			a.Notice("mount source %s does not exist on this host", m.Source)
		}
		for _, dir := range held {
			source, sourceErr := filepath.EvalSymlinks(m.Source) // the source may be on another host
			dir, err := WithoutLinks(dir)                        // later commands trust even a file created later
			if abs, absErr := filepath.Abs(dir); errors.Join(sourceErr, err, absErr) == nil &&
				(strings.HasPrefix(source+"/", abs+"/") || strings.HasPrefix(abs+"/", source+"/")) {
				return UsageError(fmt.Errorf("mount source %s contains keys or Workcell's files", m.Source),
					"mount another directory")
			}
		}
	}
	return nil
}

// configFlags returns the values of the flags with a configuration setting.
func (a *App) configFlags() map[string][]string {
	o := a.opts
	flags := map[string][]string{"allow-image": o.AllowImage, "map-image": o.MapImage, "mount": o.Mounts, "pool": o.Pool}
	for flag, value := range map[string]string{
		"backend": o.Backend, "oci-runtime": o.OCIRuntime, "isolation": string(o.Isolation),
	} {
		if value != "" {
			flags[flag] = []string{value}
		}
	}
	if o.TraceContent {
		flags["trace-content"] = []string{"true"}
	}
	return flags
}

// configureTelemetry sets the standard OpenTelemetry variables from the configuration file, unless the environment sets
// them. Exporters are configured only by these variables.
func (a *App) configureTelemetry(c *config.Config) error {
	var errs []error
	for name, value := range c.Variables {
		if a.opts.Env.Get(name) == "" {
			errs = append(errs, os.Setenv(name, value))
		}
	}
	return errors.Join(errs...)
}

// checkImage refuses an agent whose image the operator does not allow. The error has the locations of the image and the
// rule.
func (a *App) checkImage(doc *frontmatter.Document) error {
	c, err := a.Config()
	if err != nil || doc.Sandbox == nil || doc.Sandbox.Image == "" {
		return err // default images are checked when they are known
	}
	if err := c.CheckImage(doc.Sandbox.Image); err != nil {
		return doc.Problem("sandbox.image", "use another image, or ask the operator to allow this image", "%v", err)
	}
	return nil
}
