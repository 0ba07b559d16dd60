package sandboxcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/environment"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/admin"
	"github.com/workcell-dev/workcell/session/record"
)

func newSandboxRmCmd(a *command) *cobra.Command {
	var all, keep, force bool
	cmd := a.Verb(cli.EngineFlags|cli.OutputFlags, &cobra.Command{
		Use: "rm SANDBOX… | SANDBOX:PATH… | --all",
		Example: "  workcell sandbox rm mybox sbx_…\n  workcell sandbox rm --keep-workspace mybox\n" +
			"  workcell sandbox rm mybox:old.log",
		Aliases: []string{"remove"},

		SuggestFor: []string{"delete", "stop", "close"},
		Short:      "Remove sandboxes and their files",
		Long: `Remove sandboxes with their files and processes, and print their IDs. If SANDBOX is the ID of a run, all its
sandboxes are removed.

With --keep-workspace, the files in /workspace are kept for 30 days: sandbox ls lists the sandbox as stopped, and
opening its name rebuilds it with its files. To delete the files, remove the sandbox again without this flag. The
workspaces of a run are deleted with the run.

SANDBOX:PATH removes a file or directory in the sandbox, but not the sandbox. This works even if the workspace is full
and commands cannot run.`,
		Args: func(_ *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return errors.New("specify sandboxes to remove, or use --all")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			groups, err := a.ByBackend(cmd.Context(), app.StateWanted, args)
			errs := []error{err}
			removed := cli.Printed[removedSandbox]{Command: a.Command}
			for _, names := range groups {
				mayName := slices.Clone(names) // the whole argument or the part before a colon may be a sandbox
				for _, arg := range names {
					mayName = append(mayName, sandboxNames(arg)...)
				}
				use := app.Use{State: app.StateWanted, Sandboxes: mayName}
				errs = append(errs, a.WithManager(cmd.Context(), use, func(ctx context.Context, m *app.Manager) error {
					ids, files, err := toRemove(ctx, m, names, all, force)
					errs := []error{err}
					for _, f := range files {
						errs = append(errs, f.remove(ctx, m, force))
					}
					for _, id := range ids {
						if err := m.Remove(ctx, id, !keep); err == nil || force && errors.Is(err, backend.ErrNotFound) {
							removed.Add(id, removedSandbox{id})
						} else {
							errs = append(errs, err)
						}
					}
					return errors.Join(errs...)
				}))
			}
			return errors.Join(append(errs, removed.End())...)
		},
	})
	f := cmd.Flags()
	f.BoolVar(&all, "all", false, "remove all your sandboxes on the backend")
	f.BoolVar(&keep, "keep-workspace", false, "keep the workspace files for sandbox open --name")
	f.BoolVarP(&force, "force", "f", false, "ignore sandboxes and files that do not exist")
	return cmd
}

// removedSandbox is a sandbox in the output of `sandbox rm`.
type removedSandbox struct {
	ID string `json:"id"`
}

// sandboxFile is a SANDBOX:PATH argument of rm.
type sandboxFile struct{ id, sandbox, path string }

func (f sandboxFile) remove(ctx context.Context, m *app.Manager, ignoreAbsent bool) error {
	if f.path == "" {
		return app.UsageError(fmt.Errorf("%s: path required", f.sandbox), "to remove the sandbox, omit the colon")
	}
	s, err := m.Connect(ctx, f.id)
	if err != nil {
		return err
	}
	_, err = s.RemoveFile(ctx, f.path, true)
	switch {
	case err == nil, ignoreAbsent && errors.Is(err, backend.ErrNotFound):
		return nil
	case errors.Is(err, backend.ErrNotFound): // the file is missing, but the sandbox exists
		return app.Fail(app.ExitFailed, fmt.Errorf("file %s not found in the sandbox", f.path),
			fmt.Sprintf("to list the files, run `workcell sandbox exec %s -- ls -a`", f.sandbox))
	}
	return fmt.Errorf("%s: %w", f.path, err)
}

// toRemove resolves the arguments of rm. It resolves all arguments before it reports unknown ones. A run's id selects
// all sandboxes of the run.
func toRemove(
	ctx context.Context, m *app.Manager, args []string, all, ignoreAbsent bool,
) (ids []string, files []sandboxFile, err error) {
	list, err := m.List(ctx)
	if err != nil {
		return nil, nil, err
	}
	add := func(list ...session.Info) {
		for _, s := range list {
			if !slices.Contains(ids, s.ID) {
				ids = append(ids, s.ID)
			}
		}
	}
	var errs []error
	for _, arg := range args {
		if found := app.NamedSandboxes(list, arg); oneRun(found) {
			add(found...)
			continue
		}
		s, err := app.FindSandbox(list, arg) // keys contain colons too
		isFile, path := inSandbox(arg) && errors.Is(err, backend.ErrNotFound), ""
		if isFile {
			s, path, err = splitSandboxPath(list, arg)
		}
		switch {
		case err == nil && isFile:
			files = append(files, sandboxFile{s.ID, strings.TrimSuffix(arg, ":"+path), path})
		case err == nil:
			add(s)
		case !ignoreAbsent || !errors.Is(err, backend.ErrNotFound):
			errs = append(errs, err)
		}
	}
	if all {
		add(list...)
	}
	return ids, files, errors.Join(errs...)
}

// oneRun reports whether all sandboxes belong to the same run.
func oneRun(list []session.Info) bool {
	return len(list) > 0 && list[0].Run != "" && !slices.ContainsFunc(list, func(s session.Info) bool { return s.Run != list[0].Run })
}

type sandboxGCOptions struct {
	yes, named, environments bool
	older                    time.Duration
}

// Limits for the environments that gc keeps.
const (
	environmentAge   = 30 * 24 * time.Hour // maximum time since the last use
	environmentBytes = 20 << 30            // maximum total size
)

func newSandboxGCCmd(a *command) *cobra.Command {
	o := &sandboxGCOptions{}
	cmd := a.Verb(cli.EngineFlags|cli.OutputFlags, &cobra.Command{
		Use:     "gc",
		Example: "  workcell sandbox gc\n  workcell sandbox gc --yes --older-than 24h",
		Short:   "List unused sandboxes, or remove them with --yes",
		Long: `List sandboxes that no process uses, or remove them with --yes: the sandboxes of interrupted runs, kept
sandboxes and, with --named, sandboxes created by ` + "`sandbox open`" + `. All except the named ones are also
removed automatically when they expire. A run whose sandbox was removed can only be resumed with an empty sandbox.

The command also lists or removes:
  - ended sandboxes of killed library programs; with --yes, only those that were created more than an hour ago
  - packages installed by pip_packages, npm_packages, or setup that no sandbox uses, if they were not used for 30 days,
    their image has changed, or all of them together exceed 20 GiB
  - cache contents that were replaced more than a day ago
  - on Docker, volumes with the guest agent of other Workcell versions, unless they are in use or new
  - with --yes, run results older than 30 days, and workspace copies left by killed commands`,
		Args: cobra.NoArgs,
		RunE: a.managed(app.StateNeeded, nil, func(ctx context.Context, m *app.Manager, _ []string) error {
			return o.run(ctx, a, m)
		}),
	})
	f := cmd.Flags()
	f.BoolVar(&o.yes, "yes", false, "remove the items instead of listing them")
	f.BoolVar(&o.named, "named", false, "include sandboxes created by sandbox open")
	f.BoolVar(&o.environments, "environments", false, "include all installed packages, not only old ones")
	f.DurationVar(&o.older, "older-than", 0, "include only items that have been unused for at least this time")
	return cmd
}

// GarbageOutput is a sandbox without a process, an unused environment, or an unused version of the guest agent.
type GarbageOutput struct {
	ID       string    `json:"id"`
	Key      string    `json:"key"` // only for sandboxes
	Why      string    `json:"why"`
	LastUsed time.Time `json:"last_used"`
	// Snapshots is the number of a sandbox's snapshots on the engine. They are removed with the sandbox.
	Snapshots int       `json:"snapshots,omitempty"`
	Expires   time.Time `json:"expires,omitzero"` // time of the automatic removal; zero for never
	Removed   bool      `json:"removed"`

	ends string // Expires as text for the table
}

func (o *sandboxGCOptions) run(ctx context.Context, a *command, m *app.Manager) error {
	if o.yes {
		if err := a.ForgetOldRuns(ctx); err != nil {
			return err
		}
	}
	now := time.Now()
	rows := []GarbageOutput{}
	var errs []error
	// collect shows an unused item. With --yes, it removes the item unless it is in use by now.
	collect := func(g GarbageOutput, remove func() error) {
		if now.Sub(g.LastUsed) < o.older {
			return
		}
		if o.yes {
			err := remove()
			if errors.Is(err, backend.ErrExists) {
				if g.Key != "" {
					a.Notice("%s not removed: %v", g.ID, err)
				}
				return
			}
			g.Removed = err == nil
			errs = append(errs, err)
		}
		rows = append(rows, g)
	}
	recs, err := admin.Abandoned(ctx, m.Manager)
	if err != nil {
		return err
	}
	for _, rec := range recs {
		if rec.Key.Namespace != record.NamespaceUser || o.named {
			snapshots, err := admin.CountSnapshots(ctx, m.Manager, rec)
			if err != nil {
				a.Notice("snapshots of %s: %v", rec.ID, err)
			}
			g := garbageOf(rec, whyGarbage(rec))
			if g.Snapshots = snapshots; snapshots > 0 {
				g.Why = fmt.Sprintf("%s, %d snapshots", g.Why, snapshots)
			}
			collect(g, func() error { return admin.RemoveAbandoned(ctx, m.Manager, rec) })
		}
	}
	forsaken, err := admin.Forsaken(ctx, m.Manager)
	errs = append(errs, err)
	for _, rec := range forsaken {
		collect(garbageOf(rec, "program ended"), func() error {
			if wait := rec.Expires.Sub(now); wait > 0 { // its manager may still request the reason for its end
				text := fmt.Sprintf("its program may still be running; run this command again in %s", app.Age(wait))
				return &sanitize.Error{Text: text, Err: backend.ErrExists}
			}
			err := m.Backend().Remove(ctx, rec.EngineID, backend.RemoveOptions{Volumes: true})
			return sanitize.EngineError(err)
		})
	}
	environments, err := admin.Environments(ctx, m.Manager)
	if !o.environments {
		environments = environment.Reclaim(environments, now, environmentAge, environmentBytes)
	}
	errs = append(errs, err)
	for _, e := range environments {
		g := GarbageOutput{ID: e.Name, Why: fmt.Sprintf("environment of %s, %d MiB", e.Image, e.Bytes>>20)}
		g.LastUsed = e.LastUsed
		collect(g, func() error { return admin.RemoveEnvironment(ctx, m.Manager, e.Name) })
	}
	caches, err := a.Caches()
	errs = append(errs, err)
	if err == nil {
		left, err := caches.Leftovers()
		errs = append(errs, err)
		for _, l := range left {
			collect(GarbageOutput{ID: l.Name, Why: "replaced in cache " + l.Cache, LastUsed: l.Since}, func() error { return caches.RemoveLeftover(l) })
		}
	}
	header := []string{"ID", "KEY", "REASON", "UNUSED", "EXPIRES"}
	err = cli.PrintList(a.Command, rows, header, func(g GarbageOutput) []string { return g.row(now) })
	switch {
	case err != nil:
	case len(rows) == 0 && o.named:
		a.Notice("nothing to remove")
	case len(rows) == 0:
		a.Notice("nothing to remove (use --named to include named sandboxes)")
	case !o.yes:
		a.Notice("nothing removed; use --yes to remove these items")
	}
	return errors.Join(append(errs, err)...)
}

// garbageOf returns the row of a sandbox.
func garbageOf(rec record.Record, why string) GarbageOutput {
	at, _ := admin.ReclaimAt(rec, time.Now())
	return GarbageOutput{
		ID: rec.ID, Key: rec.Key.String(), Why: why, LastUsed: rec.LastUsed, Expires: at, ends: app.EndsWithoutOwner(rec),
	}
}

// whyGarbage returns the reason why a sandbox is unused, in one word.
func whyGarbage(rec record.Record) string {
	switch {
	case rec.State == record.Ready && rec.KeepWorkspace && rec.Key.Namespace != record.NamespaceWorkflow:
		return "workspace"
	case rec.Key.Namespace == record.NamespaceUser:
		return "named"
	case rec.State == record.Ready && rec.Key.Namespace == record.NamespaceWorkflow:
		return app.RunInterrupted
	case rec.State == record.Ready:
		return "left"
	case rec.State == record.Removing:
		return "kept"
	}
	return string(rec.State)
}

// row returns the row of the table.
func (g GarbageOutput) row(now time.Time) []string {
	if g.Removed {
		g.ends = "removed"
	}
	return []string{g.ID, g.Key, g.Why, app.Age(now.Sub(g.LastUsed)), cmp.Or(g.ends, "never")}
}
