package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/sqlitejournal"
)

type runsCancelOptions struct {
	out  outputFlag
	wait time.Duration
}

func newRunsCancelCmd(a *app) *cobra.Command {
	o := &runsCancelOptions{}
	cmd := &cobra.Command{
		Use:   "cancel RUN",
		Short: "End a run and remove its sandboxes",
		Long: `End a run and remove its sandboxes. A run that is under way in another process is asked to stop, as by Ctrl-C, and
waited for; one whose process died is ended here.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if o.wait < 0 {
				return usageError(fmt.Errorf("--wait %s is negative", o.wait), "as in --wait 5m")
			}
			return a.withJournal(cmd.Context(), func(ctx context.Context, j *sqlitejournal.Journal) error {
				return o.run(ctx, a, j, args[0])
			})
		},
	}
	o.out.addTo(cmd)
	cmd.Flags().DurationVar(&o.wait, "wait", 3*time.Minute, "how long to wait for a run that was asked to stop")
	return cmd
}

func (o *runsCancelOptions) run(ctx context.Context, a *app, j *sqlitejournal.Journal, id string) error {
	r, err := findRun(ctx, j, id)
	if err != nil {
		return err
	}
	switch state, err := runState(j, r); {
	case err != nil:
		return err
	case state == runRunning:
		if err := o.ask(ctx, j, r.ID); err != nil {
			return err
		}
	default: // also one that has finished, which is an error with its outcome
		if err := cancelDead(ctx, a, j, r); err != nil {
			return err
		}
	}
	err = showRun(ctx, a, j, r.ID, &o.out)
	if errors.Is(err, sqlitejournal.ErrDamaged) {
		fmt.Fprintf(a.stderr, "workcell: run %s is cancelled; what it did cannot be shown: %s\n", r.ID, sanitize.Line(err.Error()))
		return nil
	}
	return err
}

// ask asks the process that runs a run to stop, and waits until it did. A process that dies meanwhile leaves the run
// interrupted.
func (o *runsCancelOptions) ask(ctx context.Context, j *sqlitejournal.Journal, id string) error {
	if err := j.AskCancel(ctx, id); err != nil {
		return err
	}
	late, cancel := context.WithTimeout(ctx, o.wait)
	defer cancel()
	ticker := time.NewTicker(cancelEvery / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-late.Done():
			return fail(exitFailed, fmt.Errorf("run %s was asked to stop and is still under way: %w", id, late.Err()),
				"a process that is stopped cannot end its run: once it has gone on, or is killed, `workcell runs cancel "+id+"` again")
		}
		r, err := j.Run(ctx, id)
		if err != nil {
			return err
		}
		switch state, err := runState(j, r); {
		case err != nil:
			return err
		case state == runInterrupted:
			return fail(exitFailed, fmt.Errorf("the process of run %s died before the run had ended", id), "once more: workcell runs cancel "+id)
		case state != runRunning:
			return nil
		}
	}
}

// cancelDead ends a run that was interrupted.
func cancelDead(ctx context.Context, a *app, j *sqlitejournal.Journal, r sqlitejournal.Run) error {
	n, err := interrupted(j, r)
	if err != nil {
		return err
	}
	return a.withManager(ctx, engineFlags{backend: n.Backend}, imageFlags{}, stateNeeded, func(ctx context.Context, m *session.Manager) error {
		if err := n.checkEngine(a, m); err != nil {
			return err
		}
		if err := take(ctx, j, m, r); err != nil {
			return err
		}
		// Its end is recorded when nothing is left of it, as that of a run that ends by itself.
		if _, err := m.RemoveScope(ctx, session.Scope{Namespace: session.NamespaceWorkflow, ID: r.ID}); err != nil {
			return err
		}
		return j.Finish(ctx, r.ID, workflow.Cancelled, &workflow.Error{Code: workflow.CodeCancelled, Message: "cancelled after its process had died"})
	})
}
