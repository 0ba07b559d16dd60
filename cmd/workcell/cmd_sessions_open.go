package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/engines"
	"github.com/workcell-dev/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/wish"
	"github.com/workcell-dev/workcell/session"
)

type sessionsOpenOptions struct {
	req    session.Request
	limits limitFlags

	name    string
	root    string
	env     []string
	idle    time.Duration
	rebuild bool
}

func newSessionsOpenCmd(a *app) *cobra.Command {
	o := &sessionsOpenOptions{root: "readonly", req: session.Request{Network: backend.NetworkNone, Pull: backend.PullMissing}}
	cmd := a.verb(engineFlags|imageFlags|outputFlags, &cobra.Command{
		Use:   "open [flags]",
		Short: "Open a sandbox and print its id",
		Long: `Open a sandbox and print its id. It lives until ` + "`workcell sessions rm`" + ` removes it.

With --name the sandbox can be called by that name, and opening the name again returns the same sandbox as it is. What flags
say then must be so: one that was made with another image or other limits is an error, or with --rebuild rebuilt with the
files of its workspace, all of it as the flags say. -e adds to its variables.

With --idle-policy stop the sandbox is stopped, not removed, when it was idle for --idle-timeout: its processes end, its files
stay. sessions open and sessions exec start it again.`,
		Example: "  id=$(workcell sessions open --image python:3.11-slim)\n  workcell sessions exec $id -- python3 -c 'print(6*7)'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.req.IdlePolicy == session.IdleStop && !cmd.Flags().Changed("idle-timeout") {
				o.idle = session.DefaultIdleTimeout
			}
			o.req.Match, o.req.OCIRuntime = shapeFlags(cmd), a.ociRuntime
			if !cmd.Flags().Changed("image") {
				wish.DefaultImage(&o.req, frontmatter.RuntimeBash)
			}
			if o.rebuild && !cmd.Flags().Changed("image") {
				return usageError(errors.New("--rebuild needs --image"), "the sandbox is rebuilt from it, be it the same as before")
			}
			return o.run(cmd.Context(), a)
		},
	})
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "name of the sandbox; default is a random one")
	f.StringVar(&o.req.Image, "image", "", "image (default "+frontmatter.DefaultImage(frontmatter.RuntimeBash)+", or what is configured for bash)")
	f.StringVar(&o.req.User, "user", "", "uid:gid that commands run as (default "+backend.DefaultUser+")")
	f.Var(oneOf(&o.root, "readonly", "writable"), "root", "the image's file system")
	f.Var(oneOf(&o.req.Network, backend.NetworkNone, backend.NetworkBridge), "network", "what commands can reach")
	f.Var(oneOf(&o.req.Pull, backend.PullMissing, backend.PullAlways, backend.PullNever), "pull", "when the image is fetched")
	f.StringArrayVarP(&o.env, "env", "e", nil, "NAME=VALUE for every command, or NAME to pass this process's value on; may be repeated")
	f.StringArrayVar(&o.req.Caches, "cache", nil, "`NAME` of a cache of the machine that the sandbox reads, such as pip; may be repeated")
	o.limits.addTo(cmd)
	f.DurationVar(&o.idle, "idle-timeout", 0, "idle time after which the sandbox may be removed, or stopped; 0 is never (default never, "+
		session.DefaultIdleTimeout.String()+" with --idle-policy stop)")
	f.Var(oneOf(&o.req.IdlePolicy, session.IdleRemove, session.IdleStop), "idle-policy", "what becomes of it then (default as it was, remove for a new one)")
	f.BoolVar(&o.rebuild, "rebuild", false, "rebuild a sandbox of that name with another image or other limits, with its files")
	f.DurationVar(&o.req.ExecTimeout, "exec-timeout", 0, "timeout of commands that name none (default "+session.DefaultExecTimeout.String()+")")
	return cmd
}

func (o *sessionsOpenOptions) run(ctx context.Context, a *app) error {
	variables, err := o.complete(a.env)
	if err != nil {
		return err
	}
	if err := a.checkCaches(o.req.Caches); err != nil {
		return err
	}
	key := session.UserKey(cmp.Or(o.name, session.NewID()))
	if err := key.Validate(); err != nil {
		return usageError(err, "a name has letters, digits, _, - and .")
	}
	conf, err := a.config()
	if err != nil {
		return err
	}
	var named []string
	if o.name != "" && conf.Backend() == engines.Auto {
		named = []string{key.String()} // auto makes no second sandbox of a name
	}
	return a.withManager(ctx, stateNeeded, func(ctx context.Context, m *session.Manager) error {
		p := newProgress(a.stderr)
		defer p.Close()
		req := o.req
		req.OnPull, req.Prepare = p.Pull, a.saveEnv(variables)
		switch {
		case o.rebuild:
			req.Mode = session.OpenRebuild
		case o.name != "":
			req.Mode = session.OpenAsIs
		}
		p.Status("opening sandbox")
		s, created, err := m.Open(ctx, key, req)
		var conflict *session.ConflictError
		if errors.As(err, &conflict) && !o.rebuild {
			return fail(exitConflict, err, conflictHint(ctx, m, conflict))
		}
		if err == nil && !created && req.Prepare != nil {
			err = req.Prepare(ctx, s)
		}
		if err != nil {
			return err
		}
		p.Status("")
		return a.print(openedSandbox{sandboxRow(s.Info()), created, a.mechanism(ctx, s)}, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, s.ID())
			return err
		})
	}, named...)
}

// conflictHint returns what a named sandbox is that was asked for as something else, as far as its engine reports.
func conflictHint(ctx context.Context, m *session.Manager, conflict *session.ConflictError) string {
	const rebuild = "--rebuild rebuilds it with the files of its workspace"
	if conflict.Gone {
		return "give --mount, --network and --oci-runtime again as it had them, and no other flags, " +
			"to rebuild it with its files; --rebuild --image IMAGE changes its image"
	}
	list, err := m.List(ctx)
	i := slices.IndexFunc(list, func(s session.Info) bool { return s.Key == conflict.Key && s.Image != "" })
	if err != nil || i < 0 {
		return rebuild
	}
	s := list[i]
	return fmt.Sprintf("it has the image %s, user %s, network %s, %d MiB of memory and %d processes; without flags it is opened as it is, and %s",
		s.Image, s.User, s.Network, s.Limits.MemoryBytes>>20, s.Limits.PIDs, rebuild)
}

// shapeFlags returns what the flags that were given say of the sandbox, in the words of session.ConflictError.
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

// openedSandbox is what `sessions open -o json` prints.
type openedSandbox struct {
	sandboxOutput
	Created bool `json:"created"` // false: the name was open already
	// Snapshots is how they are made of it; empty where there are none.
	Snapshots backend.SnapshotMechanism `json:"snapshots,omitempty"`
}

// complete checks what the flags say and puts into the request what they do not set themselves. It returns the variables of
// -e, which are not in the request: a sandbox is the same one whatever variables somebody sets in it.
func (o *sessionsOpenOptions) complete(e environ.Lookup) (variables map[string]string, err error) {
	if o.idle < 0 {
		return nil, usageError(fmt.Errorf("--idle-timeout %s is negative", o.idle), "0 is never")
	}
	o.req.IdleTimeout = cmp.Or(o.idle, -1)
	if o.root == "writable" {
		o.req.Root = backend.RootWritable
	}
	if _, err := backend.NormalizeImage(o.req.Image); err != nil {
		return nil, usageError(err, "")
	}
	if o.req.Limits, err = o.limits.limits(); err != nil {
		return nil, err
	}
	if err := checkUser(e, o.req.User); err != nil {
		return nil, err
	}
	if variables, err = parseEnv(e, o.env); err != nil {
		return nil, err
	}
	if err := session.ValidateEnv(variables); err != nil {
		return nil, usageError(err, "-e NAME=VALUE, or -e NAME")
	}
	return variables, nil
}

// checkUser refuses a user that no sandbox can have, or may have here.
func checkUser(e environ.Lookup, user string) error {
	id, err := session.ParseUser(user)
	if err != nil {
		return usageError(fmt.Errorf("--user %q is not known", user), "use UID or UID:GID in numbers, as 1000:1000")
	}
	if session.IsRoot(id) && !rootAllowed(e) {
		return usageError(fmt.Errorf("--user %s: root is not allowed in sandboxes", user), "WORKCELL_ALLOW_ROOT=1 allows it")
	}
	return nil
}

// parseEnv reads -e flags: NAME=VALUE, or NAME alone to pass on the value that this process has, if it has one.
func parseEnv(e environ.Lookup, pairs []string) (map[string]string, error) {
	out := map[string]string{}
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if name == "" {
			// The value may be a secret, so it is not repeated.
			return nil, usageError(fmt.Errorf("an environment variable needs a name before the ="), "-e NAME=VALUE, or -e NAME")
		}
		if !ok {
			if value, ok = e(name); !ok {
				continue
			}
		}
		out[name] = value
	}
	return out, nil
}
