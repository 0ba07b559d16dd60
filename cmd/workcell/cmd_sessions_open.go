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
	"github.com/workcell-dev/workcell/internal/environ"
	"github.com/workcell-dev/workcell/session"
)

type sessionsOpenOptions struct {
	engine engineFlags
	images imageFlags
	out    outputFlag

	name        string
	image       string
	user        string
	root        string
	network     string
	runtime     string
	pull        string
	env         []string
	limitFlags  limitFlags
	timeout     time.Duration
	idlePolicy  string
	execTimeout time.Duration
	rebuild     bool
	variables   map[string]string // what env says
	shape       []string          // fields of session.ConflictError that flags speak of
}

func newSessionsOpenCmd(a *app) *cobra.Command {
	o := &sessionsOpenOptions{}
	cmd := &cobra.Command{
		Use:   "open [flags]",
		Short: "Open a sandbox and print its id",
		Long: `Open a sandbox and print its id. It lives until ` + "`workcell sessions rm`" + ` removes it.

With --name the sandbox can be called by that name, and opening the name again gives the same sandbox as it is. What flags
say then must be so: one that was made with another image or other limits is an error, or with --rebuild made anew with the
files of its workspace, all of it as the flags say. -e adds to its variables.

With --idle-policy stop the sandbox is stopped, not removed, when it was idle for --timeout: its processes end, its files
stay. sessions open and sessions exec start it again.`,
		Example: "  id=$(workcell sessions open --image python:3.11-slim)\n  workcell sessions exec $id -- python3 -c 'print(6*7)'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.idlePolicy == string(session.IdleStop) && !cmd.Flags().Changed("timeout") {
				o.timeout = session.DefaultIdleTimeout
			}
			o.shape = shapeFlags(cmd)
			if o.rebuild && !cmd.Flags().Changed("image") {
				return usageError(errors.New("--rebuild needs --image"), "the sandbox is made anew from it, be it the same as before")
			}
			return o.run(cmd.Context(), a)
		},
	}
	o.engine.addTo(cmd)
	o.images.addTo(cmd)
	o.out.addTo(cmd)
	f := cmd.Flags()
	f.StringVar(&o.name, "name", "", "name of the sandbox; default is a random one")
	f.StringVar(&o.image, "image", "debian:bookworm-slim", "image")
	f.StringVar(&o.user, "user", "", "uid:gid that commands run as (default "+backend.DefaultUser+")")
	f.StringVar(&o.root, "root", "readonly", "the image's file system: readonly or writable")
	f.StringVar(&o.network, "network", string(backend.NetworkNone), "none or bridge")
	f.StringVar(&o.runtime, "runtime", "", "OCI runtime (default the engine's)")
	f.StringVar(&o.pull, "pull", string(backend.PullMissing), "when the image is fetched: missing, always or never")
	f.StringArrayVarP(&o.env, "env", "e", nil, "NAME=VALUE for every command, or NAME to pass this process's value on; may be repeated")
	o.limitFlags.addTo(cmd)
	f.DurationVar(&o.timeout, "timeout", 0, "idle time after which the sandbox may be removed, or stopped; 0 is never (default never, "+
		session.DefaultIdleTimeout.String()+" with --idle-policy stop)")
	f.StringVar(&o.idlePolicy, "idle-policy", "", "what becomes of it then: remove or stop (default as it was, remove for a new one)")
	f.BoolVar(&o.rebuild, "rebuild", false, "make a sandbox of that name with another image or other limits anew, with its files")
	f.DurationVar(&o.execTimeout, "exec-timeout", 0, "timeout of commands that name none (default "+session.DefaultExecTimeout.String()+")")
	return cmd
}

func (o *sessionsOpenOptions) run(ctx context.Context, a *app) error {
	req, err := o.request(a.env)
	if err != nil {
		return err
	}
	key := session.UserKey(o.name)
	if o.name == "" {
		key = session.UserKey(session.NewID())
	}
	if err := key.Validate(); err != nil {
		return usageError(err, "a name has letters, digits, _, - and .")
	}
	return a.withManager(ctx, o.engine, o.images, stateNeeded, func(ctx context.Context, m *session.Manager) error {
		p := newProgress(a.stderr)
		defer p.Close()
		req.OnPull, req.Prepare = p.Pull, a.saveEnv(o.variables)
		switch req.Match = o.shape; {
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
		return o.out.write(a.stdout, openedSandbox{sandboxRow(s.Info()), created}, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, s.ID())
			return err
		})
	})
}

// conflictHint returns what a named sandbox is that was asked for as something else, as far as its engine tells.
func conflictHint(ctx context.Context, m *session.Manager, conflict *session.ConflictError) string {
	const rebuild = "--rebuild makes it anew with the files of its workspace"
	if conflict.Gone {
		return "without flags it is made anew as it was, with its files; --rebuild --image IMAGE makes another one with them"
	}
	s, ok := openedAs(ctx, m, conflict.Key)
	if !ok {
		return rebuild
	}
	return fmt.Sprintf("it has the image %s, user %s, network %s, %d MiB of memory and %d processes; without flags it is opened as it is, and %s",
		s.Image, s.User, s.Network, s.Limits.MemoryBytes>>20, s.Limits.PIDs, rebuild)
}

// openedAs describes the sandbox of a key; false when the engine has none, or does not say.
func openedAs(ctx context.Context, m *session.Manager, key session.Key) (session.Info, bool) {
	list, err := m.List(ctx)
	i := slices.IndexFunc(list, func(s session.Info) bool { return s.Key == key && s.Image != "" })
	if err != nil || i < 0 {
		return session.Info{}, false
	}
	return list[i], true
}

// shapeFlags names what the flags that were given say of the sandbox, as a session.ConflictError does.
func shapeFlags(cmd *cobra.Command) []string {
	var out []string
	for _, field := range []struct {
		name  string
		flags []string
	}{
		{"image", []string{"image"}},
		{"user", []string{"user"}},
		{"root", []string{"root"}},
		{"limits", slices.Collect(maps.Keys(limitFlagNames()))},
		{"network", []string{"network"}},
		{"runtime", []string{"runtime"}},
	} {
		if slices.ContainsFunc(field.flags, cmd.Flags().Changed) {
			out = append(out, field.name)
		}
	}
	return out
}

// openedSandbox is what `sessions open -o json` prints.
type openedSandbox struct {
	sandboxOutput
	Created bool `json:"created"` // false: the name was open already
}

func (o *sessionsOpenOptions) request(e environ.Lookup) (session.Request, error) {
	const mib = 1 << 20
	if o.timeout < 0 {
		return session.Request{}, usageError(fmt.Errorf("--timeout %s is negative", o.timeout), "0 is never")
	}
	if _, err := backend.NormalizeImage(o.image); err != nil {
		return session.Request{}, usageError(err, "")
	}
	req := session.Request{
		Image: o.image, User: o.user, Runtime: o.runtime,
		IdleTimeout: cmp.Or(o.timeout, -1), IdlePolicy: session.IdlePolicy(o.idlePolicy), ExecTimeout: o.execTimeout,
	}
	var err error
	if req.Limits, err = o.limitFlags.limits(); err != nil {
		return req, err
	}
	if err := checkUser(e, o.user); err != nil {
		return req, err
	}
	switch o.root {
	case "readonly":
	case "writable":
		req.Root = backend.RootWritable
	default:
		return req, usageError(fmt.Errorf("--root %q is not known", o.root), "use readonly or writable")
	}
	switch req.IdlePolicy {
	case "", session.IdleRemove, session.IdleStop:
	default:
		return req, usageError(fmt.Errorf("--idle-policy %q is not known", o.idlePolicy), "use remove or stop")
	}
	switch n := backend.NetworkMode(o.network); n {
	case backend.NetworkNone, backend.NetworkBridge:
		req.Network = n
	default:
		return req, usageError(fmt.Errorf("--network %q is not known", o.network), "use none or bridge")
	}
	switch p := backend.PullPolicy(o.pull); p {
	case backend.PullMissing, backend.PullAlways, backend.PullNever:
		req.Pull = p
	default:
		return req, usageError(fmt.Errorf("--pull %q is not known", o.pull), "use missing, always or never")
	}
	// Not in the request: a sandbox is the same one whatever variables somebody gives it.
	if o.variables, err = parseEnv(e, o.env); err != nil {
		return req, err
	}
	if err := session.ValidateEnv(o.variables); err != nil {
		return req, usageError(err, "-e NAME=VALUE, or -e NAME")
	}
	return req, nil
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
