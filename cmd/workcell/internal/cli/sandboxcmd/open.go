package sandboxcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/engines"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

type sandboxOpenOptions struct {
	req   session.Request
	flags *pflag.FlagSet // with the limits

	name    string
	root    string
	env     []string
	idle    time.Duration
	rebuild bool
}

func newSandboxOpenCmd(a *command) *cobra.Command {
	o := &sandboxOpenOptions{root: "readonly"}
	o.req.Network, o.req.Pull = backend.NetworkNone, backend.PullMissing
	cmd := a.Verb(cli.EngineFlags|cli.ImageFlags|cli.OutputFlags, &cobra.Command{
		Use:   "open [flags]",
		Short: "Create or open a sandbox",
		Long: `Create a sandbox and print its ID. By default, it exists until you run ` + "`workcell sandbox rm`" + `.

With --name, you can use the name instead of the ID, and opening the name again returns the existing sandbox. The
command fails if the image or other settings in the flags differ from the sandbox's. With --rebuild, it instead
rebuilds the sandbox with the specified settings and keeps its workspace files. -e adds variables to an existing
sandbox.

With --idle-timeout, the sandbox is stopped after this idle time: its files are kept, and sandbox open and sandbox
exec start it again. A sandbox is not idle while a process runs in it. With --idle-policy remove, or on a backend that
cannot keep the files of a stopped sandbox, the sandbox is removed instead.`,
		Example: "  id=$(workcell sandbox open --image python:3.11-slim)\n" +
			"  workcell sandbox exec $id -- python3 -c 'print(6*7)'",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.req.IdlePolicy == record.IdleStop && !cmd.Flags().Changed("idle-timeout") {
				o.idle = session.DefaultIdleTimeout
			}
			o.req.Match, o.req.OCIRuntime = shapeFlags(cmd), a.Options.OCIRuntime
			if !cmd.Flags().Changed("image") {
				wish.DefaultImage(&o.req, frontmatter.RuntimeBash)
			}
			if o.rebuild && !cmd.Flags().Changed("image") {
				return app.UsageError(errors.New("--rebuild requires --image"), "specify the image even if it has not changed")
			}
			return o.run(cmd.Context(), a)
		},
	})
	f := cmd.Flags()
	o.flags = f
	f.StringVar(&o.name, "name", "", "`NAME`: name of the sandbox (default: random)")
	f.StringVar(&o.req.Image, "image", "",
		"`IMAGE`: image to use (default "+frontmatter.DefaultImage(frontmatter.RuntimeBash)+
			", or the configured image for bash)")
	f.StringVar(&o.req.User, "user", "", "`UID[:GID]`: user to run commands as (default "+backend.DefaultUser+")")
	f.Var(cli.OneOf(&o.root, "readonly", "writable"), "root", "access to the image's file system")
	f.Var(cli.OneOf(&o.req.Network, backend.NetworkNone, backend.NetworkBridge), "network", "network access of commands")
	f.Var(cli.OneOf(&o.req.Pull, backend.PullMissing, backend.PullAlways, backend.PullNever), "pull",
		"when to pull the image")
	f.StringArrayVarP(&o.env, "env", "e", nil,
		"`NAME=VALUE`: environment variable for all commands; NAME alone passes on its local value (repeatable)")
	f.StringArrayVar(&o.req.Caches, "cache", nil,
		"`NAME`: name of a cache that the sandbox can read, for example pip (repeatable)")
	for flag, name := range limitFlagNames() {
		f.Int64(flag, 0, limitUsage(name))
	}
	f.DurationVar(&o.idle, "idle-timeout", 0, "stop the sandbox after this idle time; 0 means never (default never, "+
		session.DefaultIdleTimeout.String()+" with --idle-policy stop)")
	f.Var(cli.OneOf(&o.req.IdlePolicy, record.IdleRemove, record.IdleStop), "idle-policy",
		"stop or remove an idle sandbox (default: as before, or for a new sandbox stop, if that keeps its files)")
	f.BoolVar(&o.rebuild, "rebuild", false,
		"rebuild the sandbox if its image or limits differ, and keep its workspace files")
	return cmd
}

func (o *sandboxOpenOptions) run(ctx context.Context, a *command) error {
	variables, err := o.complete(a.Options.Env)
	if err != nil {
		return err
	}
	if err := a.CheckCaches(o.req.Caches); err != nil {
		return err
	}
	key := session.UserKey(cmp.Or(o.name, record.NewID()))
	if err := key.Validate(); err != nil {
		return app.UsageError(err, "use only letters, digits, _, -, and .")
	}
	conf, err := a.Config()
	if err != nil {
		return err
	}
	use := app.Use{IdlePolicy: record.IdleStop}
	if o.name != "" && conf.Backend == engines.Auto {
		use.Sandboxes = []string{key.String()} // auto must not create a second sandbox with the same name
	}
	return a.WithManager(ctx, use, func(ctx context.Context, m *app.Manager) error {
		p := a.Progress()
		defer p.Close()
		req := o.req
		req.OnPull, req.Prepare = p.Pull, m.SaveEnv(variables)
		switch {
		case o.rebuild:
			req.Mode = session.OpenRebuild
		case o.name != "":
			req.Mode = session.OpenAsIs
		}
		p.Status("opening sandbox")
		s, created, err := m.Open(ctx, key, req)
		if conflict, ok := errors.AsType[*session.ConflictError](err); ok && !o.rebuild {
			return app.Fail(app.ExitConflict, err, conflictHint(ctx, m, conflict))
		}
		if err == nil && !created && req.Prepare != nil {
			err = req.Prepare(ctx, s)
		}
		if err != nil {
			return err
		}
		p.Status("")
		for _, name := range o.req.Caches {
			used := func(m backend.Mount) bool { return m.Target == session.CacheDir+"/"+name }
			if created && !slices.ContainsFunc(s.Info().Mounts, used) {
				a.Notice("cache %s is empty, so the sandbox does not use it; to fill it, see `workcell cache fill --help`", name)
			}
		}
		return a.PrintLines(openedSandbox{app.ViewSandbox(s.Info()), created, a.mechanism(ctx, s)}, s.ID())
	})
}

// conflictHint returns a hint about a named sandbox with other settings. It shows the settings that the
// engine reports.
func conflictHint(ctx context.Context, m *app.Manager, conflict *session.ConflictError) string {
	const rebuild = "--rebuild --image IMAGE rebuilds it, keeps its workspace files, and resets settings not passed"
	if conflict.Gone {
		return "to rebuild it with its files, pass only its original --mount, --network, and --oci-runtime; " +
			"to change its image, pass --rebuild --image IMAGE"
	}
	list, err := m.List(ctx)
	i := slices.IndexFunc(list, func(s session.Info) bool { return s.Key == conflict.Key && s.Image != "" })
	if err != nil || i < 0 {
		return rebuild
	}
	s := list[i]
	return fmt.Sprintf("it has image %s, user %s, network %s, %d MiB of memory, and %d processes; omit the flags to "+
		"open it as it is; %s",
		s.Image, s.User, s.Network, s.Limits.MemoryBytes>>20, s.Limits.PIDs, rebuild)
}

// shapeFlags returns the sandbox settings in the given flags, named like in session.ConflictError.
func shapeFlags(cmd *cobra.Command) []string {
	var out []string
	for _, field := range []string{"image", "user", "root", "limits", "network", "oci_runtime", "mounts", "cache"} {
		flags := []string{strings.ReplaceAll(field, "_", "-")}
		switch field {
		case "limits":
			flags = slices.Collect(maps.Keys(limitFlagNames()))
		case "mounts":
			flags = []string{"mount"}
		}
		if slices.ContainsFunc(flags, cmd.Flags().Changed) {
			out = append(out, field)
		}
	}
	return out
}

// openedSandbox is the output of `sandbox open -o json`.
type openedSandbox struct {
	app.SandboxView
	Created bool `json:"created"` // false if the sandbox already existed
	// Snapshots is the mechanism for snapshots. It is empty if snapshots are not supported.
	Snapshots backend.SnapshotMechanism `json:"snapshots,omitempty"`
}

// complete checks the flags and completes the request. It returns the variables of -e separately. They are not part of
// the request, because they do not change the identity of a sandbox.
func (o *sandboxOpenOptions) complete(e environ.Lookup) (variables map[string]string, err error) {
	if o.idle < 0 {
		return nil, app.InvalidFlag("idle-timeout", o.idle, "must be positive, or 0 for never")
	}
	o.req.IdleTimeout = cmp.Or(o.idle, -1)
	if o.root == "writable" {
		o.req.Root = backend.RootWritable
	}
	if _, err := backend.NormalizeImage(o.req.Image); err != nil {
		return nil, app.UsageError(err, "for example python:3.11-slim or ghcr.io/acme/tools:1.2")
	}
	if o.req.Limits, err = limitsOf(o.flags); err != nil {
		return nil, err
	}
	if err := checkUser(e, o.req.User); err != nil {
		return nil, err
	}
	if variables, err = cli.ParseEnv(e, o.env); err != nil {
		return nil, err
	}
	if err := sandbox.ValidateEnv(variables); err != nil {
		return nil, app.UsageError(err, "use -e NAME=VALUE or -e NAME")
	}
	for name, value := range variables {
		if !utf8.ValidString(name + value) { // the state database stores text
			return nil, app.UsageError(fmt.Errorf("variable %q is not UTF-8", name), "encode the value, for example with base64")
		}
	}
	return variables, nil
}

// checkUser returns an error for an invalid or forbidden user.
func checkUser(e environ.Lookup, user string) error {
	id, err := record.ParseUser(user)
	if err != nil {
		return app.InvalidFlag("user", user, "use a numeric UID or UID:GID, for example 1000:1000")
	}
	if record.IsRoot(id) && !app.RootAllowed(e) {
		return app.UsageError(fmt.Errorf("--user %s: root is not allowed in sandboxes", user),
			"set WORKCELL_ALLOW_ROOT=1 to allow it")
	}
	return nil
}

// limitFlagNames returns the flags for the limits of a sandbox, each with the name of its limit in backend.LimitTable.
func limitFlagNames() map[string]string {
	return map[string]string{
		"cpu": "cpu_millicores", "memory-mb": "memory_mb", "pids": "pids", "workspace-mb": "workspace_mb", "tmp-mb": "tmp_mb",
		"shm-mb": "shm_mb",
	}
}

// limitUsage describes a limit with unit, range, and default.
func limitUsage(name string) string {
	row := backend.LimitNamed(name)
	least, most := row.Bounds()
	unit := ""
	if !strings.HasPrefix(row.What, row.Unit) {
		unit = " " + row.Unit
	}
	usage := fmt.Sprintf("%s, %d to %d%s", row.What, least, most, unit)
	if row.Default == 0 {
		return usage
	}
	return fmt.Sprintf("%s (default %d)", usage, row.Default/row.Scale)
}

// limitsOf returns the limits set by the flags, in the units of backend.LimitTable. It returns an error with the flag
// for limits that no engine can enforce.
func limitsOf(f *pflag.FlagSet) (l backend.Limits, err error) {
	for flag, name := range limitFlagNames() {
		if !f.Changed(flag) {
			continue
		}
		row := backend.LimitNamed(name)
		value, _ := f.GetInt64(flag) // the command has parsed it
		if least, most := row.Bounds(); value < least || value > most {
			return l, app.InvalidFlag(flag, value, fmt.Sprintf("must be %d to %d %s", least, most, row.Unit))
		}
		*row.Of(&l) = value * row.Scale
	}
	return l, nil
}
