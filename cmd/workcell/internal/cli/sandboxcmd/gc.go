package sandboxcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/environment"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session/admin"
	"github.com/workcell-dev/workcell/session/record"
)

type sandboxGCOptions struct {
	yes, named, environments bool
	older                    time.Duration
}

// Limits for the environments kept by gc.
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
  - with --yes, runs that ended more than 30 days ago (retention.runs), and workspace copies left by killed commands

It never removes sandboxes that a process uses, sandboxes on other backends, or the current contents of caches.`,
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

// GarbageOutput is a sandbox without a process, an unused environment, or the old contents of a cache.
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
	c := &collector{sandboxGCOptions: o, a: a, m: m, now: time.Now(), rows: []GarbageOutput{}}
	if err := c.addAbandoned(ctx); err != nil {
		return err
	}
	c.addForsaken(ctx)
	c.addEnvironments(ctx)
	c.addCaches()
	header := []string{"ID", "KEY", "REASON", "UNUSED", "EXPIRES"}
	err := cli.PrintList(a.Command, c.rows, header, func(g GarbageOutput) []string { return g.row(c.now) })
	switch {
	case err != nil:
	case len(c.rows) == 0 && o.named:
		a.Notice("nothing to remove")
	case len(c.rows) == 0:
		a.Notice("nothing to remove (use --named to include named sandboxes)")
	case !o.yes:
		a.Notice("nothing removed; use --yes to remove these items")
	}
	return errors.Join(append(c.errs, err)...)
}

// collector collects unused items and, with --yes, removes them.
type collector struct {
	*sandboxGCOptions
	a    *command
	m    *app.Manager
	now  time.Time
	rows []GarbageOutput
	errs []error
}

// add adds an unused item. With --yes, it removes the item unless it is in use by now.
func (c *collector) add(g GarbageOutput, remove func() error) {
	if c.now.Sub(g.LastUsed) < c.older {
		return
	}
	if c.yes {
		err := remove()
		if errors.Is(err, backend.ErrExists) {
			if g.Key != "" {
				c.a.Notice("%s not removed: %v", g.ID, err)
			}
			return
		}
		g.Removed = err == nil
		c.errs = append(c.errs, err)
	}
	c.rows = append(c.rows, g)
}

// addAbandoned adds recorded sandboxes without a process.
func (c *collector) addAbandoned(ctx context.Context) error {
	recs, err := admin.Abandoned(ctx, c.m.Manager)
	for _, rec := range recs {
		if rec.Key.Namespace == record.NamespaceUser && !c.named {
			continue
		}
		snapshots, err := admin.CountSnapshots(ctx, c.m.Manager, rec)
		if err != nil {
			c.a.Notice("snapshots of %s: %v", rec.ID, err)
		}
		g := garbageOf(rec, whyGarbage(rec))
		if g.Snapshots = snapshots; snapshots > 0 {
			g.Why = fmt.Sprintf("%s, %d snapshots", g.Why, snapshots)
		}
		c.add(g, func() error { return admin.RemoveAbandoned(ctx, c.m.Manager, rec) })
	}
	return err
}

// addForsaken adds ended sandboxes of killed programs without records.
func (c *collector) addForsaken(ctx context.Context) {
	recs, err := admin.Forsaken(ctx, c.m.Manager)
	c.errs = append(c.errs, err)
	for _, rec := range recs {
		c.add(garbageOf(rec, "program ended"), func() error {
			if wait := rec.Expires.Sub(c.now); wait > 0 { // the manager may still request the reason for the end
				text := fmt.Sprintf("its program may still be running; run this command again in %s", app.Age(wait))
				return &sanitize.Error{Text: text, Err: backend.ErrExists}
			}
			err := c.m.Backend().Remove(ctx, rec.EngineID, backend.RemoveOptions{Volumes: true})
			return sanitize.EngineError(err)
		})
	}
}

// addEnvironments adds unused installed packages.
func (c *collector) addEnvironments(ctx context.Context) {
	list, err := admin.Environments(ctx, c.m.Manager)
	c.errs = append(c.errs, err)
	if !c.environments {
		list = environment.Reclaim(list, c.now, environmentAge, environmentBytes)
	}
	for _, e := range list {
		g := GarbageOutput{
			ID: e.Name, Why: fmt.Sprintf("environment of %s, %d MiB", e.Image, e.Bytes>>20), LastUsed: e.LastUsed,
		}
		c.add(g, func() error { return admin.RemoveEnvironment(ctx, c.m.Manager, e.Name) })
	}
}

// addCaches adds the replaced contents of caches.
func (c *collector) addCaches() {
	caches, err := c.a.Caches()
	if err != nil {
		c.errs = append(c.errs, err)
		return
	}
	left, err := caches.Leftovers()
	c.errs = append(c.errs, err)
	for _, l := range left {
		g := GarbageOutput{ID: l.Name, Why: "replaced in cache " + l.Cache, LastUsed: l.Since}
		c.add(g, func() error { return caches.RemoveLeftover(l) })
	}
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
