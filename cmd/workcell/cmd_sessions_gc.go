package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session"
)

type sessionsGCOptions struct {
	engine engineFlags
	out    outputFlag
	yes    bool
	named  bool
	older  time.Duration
}

func newSessionsGCCmd(a *app) *cobra.Command {
	o := &sessionsGCOptions{}
	cmd := &cobra.Command{
		Use:   "gc",
		Short: "Show, and with --yes remove, the sandboxes that no process has",
		Long: `Show, and with --yes remove, the sandboxes that no process has: those of interrupted runs, those that were kept, and
with --named also those that ` + "`sessions open`" + ` made. All but the named ones would go by themselves, when their time is over.

On Docker the volumes with the guest program of other versions of Workcell go with them, unless a container has them or
they are new.

A run whose sandbox is removed can be resumed with an empty one only.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withManager(cmd.Context(), o.engine, imageFlags{}, stateNeeded, func(ctx context.Context, m *session.Manager) error {
				return o.run(ctx, a, m)
			})
		},
	}
	o.engine.addTo(cmd)
	o.out.addTo(cmd)
	f := cmd.Flags()
	f.BoolVar(&o.yes, "yes", false, "remove them; without it they are only shown")
	f.BoolVar(&o.named, "named", false, "also the ones that sessions open made")
	f.DurationVar(&o.older, "older-than", 0, "only those that were last used longer ago than this")
	return cmd
}

// garbageOutput is a sandbox that no process has, or the guest program of a version that none needs.
type garbageOutput struct {
	ID       string    `json:"id"`
	Key      string    `json:"key"` // empty for a guest
	Why      string    `json:"why"`
	LastUsed time.Time `json:"last_used"`
	Expires  time.Time `json:"expires,omitzero"` // when it goes by itself; zero is never
	Removed  bool      `json:"removed"`
}

func (o *sessionsGCOptions) run(ctx context.Context, a *app, m *session.Manager) error {
	recs, err := m.Abandoned(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	rows := []garbageOutput{}
	var errs []error
	for _, rec := range recs {
		if rec.Key.Namespace == session.NamespaceUser && !o.named || now.Sub(rec.LastUsed) < o.older {
			continue
		}
		row := garbageOutput{ID: rec.ID, Key: rec.Key.String(), Why: whyGarbage(rec), LastUsed: rec.LastUsed, Expires: rec.Expires}
		if o.yes {
			err := m.RemoveAbandoned(ctx, rec)
			if errors.Is(err, backend.ErrExists) {
				fmt.Fprintf(a.stderr, "workcell: %s stays, it is in use: %s\n", rec.ID, sanitize.Line(err.Error()))
				continue
			}
			row.Removed = err == nil
			errs = append(errs, err)
		}
		rows = append(rows, row)
	}
	old, err := o.oldGuests(ctx, m, now)
	rows, errs = append(rows, old...), append(errs, err)
	err = o.out.write(a.stdout, rows, func(w io.Writer) error { return garbageTable(w, rows, now) })
	switch {
	case err != nil:
	case len(rows) == 0 && o.named:
		fmt.Fprintln(a.stderr, "workcell: there is nothing to remove")
	case len(rows) == 0:
		fmt.Fprintln(a.stderr, "workcell: there is nothing to remove; --named also looks at what sessions open made")
	case !o.yes:
		fmt.Fprintln(a.stderr, "workcell: nothing was removed; --yes removes them")
	}
	return errors.Join(append(errs, err)...)
}

// oldGuests removes, or only shows, the guest programs of other versions.
func (o *sessionsGCOptions) oldGuests(ctx context.Context, m *session.Manager, now time.Time) ([]garbageOutput, error) {
	list, err := m.OldGuests(ctx)
	errs := []error{err}
	var rows []garbageOutput
	for _, g := range list {
		if now.Sub(g.Created) < o.older {
			continue
		}
		row := garbageOutput{ID: g.Name, Why: "old guest", LastUsed: g.Created, Expires: session.OldGuestReclaimAt(g)}
		if o.yes {
			err := m.RemoveOldGuest(ctx, g)
			if errors.Is(err, backend.ErrExists) {
				continue // somebody needs it now
			}
			row.Removed = err == nil
			errs = append(errs, err)
		}
		rows = append(rows, row)
	}
	return rows, errors.Join(errs...)
}

// whyGarbage returns in a word how a sandbox came to be nobody's.
func whyGarbage(rec session.Record) string {
	switch {
	case rec.State == session.RecordReady && rec.KeepWorkspace && rec.Key.Namespace != session.NamespaceWorkflow:
		return "workspace"
	case rec.Key.Namespace == session.NamespaceUser:
		return "named"
	case rec.State == session.RecordReady && rec.Key.Namespace == session.NamespaceWorkflow:
		return runInterrupted
	case rec.State == session.RecordReady:
		return "left"
	case rec.State == session.RecordRemoving:
		return "kept"
	}
	return string(rec.State)
}

func garbageTable(w io.Writer, list []garbageOutput, now time.Time) error {
	if len(list) == 0 {
		return nil
	}
	rows := make([][]string, len(list))
	for i, g := range list {
		goes := "never"
		if !g.Expires.IsZero() {
			goes = "in " + age(g.Expires.Sub(now))
		}
		if g.Removed {
			goes = "removed"
		}
		rows[i] = []string{g.ID, g.Key, g.Why, age(now.Sub(g.LastUsed)), goes}
	}
	return writeTable(w, []string{"ID", "KEY", "WHY", "UNUSED", "GOES"}, rows)
}
