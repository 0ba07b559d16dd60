package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/internal/isolated"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/sqlitejournal"
)

type runsResumeOptions struct {
	out   outputFlag
	fresh bool
}

func newRunsResumeCmd(a *app) *cobra.Command {
	o := &runsResumeOptions{}
	cmd := &cobra.Command{
		Use:   "resume RUN",
		Short: "Go on with a run whose process died",
		Long: `Go on with a run whose process died, with the flags that it was started with. Steps that finished are not run again;
the step that was under way is, from its beginning, and what it left running is ended. The run's sandboxes are taken over
with their files. When one of them is gone, the run does not go on, unless --fresh-sandbox says that an empty one will do.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withJournal(cmd.Context(), func(ctx context.Context, j *sqlitejournal.Journal) error {
				return o.run(ctx, a, j, args[0])
			})
		},
	}
	o.out.addTo(cmd)
	cmd.Flags().BoolVar(&o.fresh, "fresh-sandbox", false, "go on with an empty sandbox where the run's own is gone")
	return cmd
}

func (o *runsResumeOptions) run(ctx context.Context, a *app, j *sqlitejournal.Journal, id string) error {
	r, err := findRun(ctx, j, id)
	if err != nil {
		return err
	}
	n, err := interrupted(j, r)
	if err != nil {
		return err
	}
	files := agentsFor(n.Workflow, n.Agents)
	wf, err := workflow.Load(n.Workflow, &workflow.LoadOptions{Agents: files.known})
	if err != nil {
		return fail(exitInvalid, err, "the file must be as it was when the run began; `workcell runs cancel "+r.ID+"` gives the run up")
	}
	if wf.Hash != r.Hash {
		return fail(exitInvalid, fmt.Errorf("%s: %w", n.Workflow, workflow.ErrChanged),
			"put back what it was, or give the run up: workcell runs cancel "+r.ID)
	}
	opts := n.options()
	opts.out = o.out
	return a.withHost(ctx, opts.engine, opts.images, opts.models, agentPaths(files, wf), func(ctx context.Context, h *host, m *session.Manager, p *progress) error {
		if err := n.checkEngine(a, m); err != nil {
			return err
		}
		entries, err := j.Entries(ctx, r.ID)
		if err != nil {
			return err
		}
		if err := o.checkSandboxes(ctx, m, r.ID, entries); err != nil {
			// They are gone too when another process went on with the run meanwhile, and ended it.
			if now, late := j.Run(ctx, r.ID); late == nil {
				if _, taken := interrupted(j, now); taken != nil {
					return taken
				}
			}
			return err
		}
		if err := take(ctx, j, m, r); err != nil {
			return err
		}
		h.resume(entries)
		return opts.execute(ctx, a, h, m, p, j, r.Note, func(ctx context.Context, e *workflow.Engine) (*workflow.Result, error) {
			return e.Resume(ctx, wf, entries)
		})
	})
}

// checkSandboxes makes sure that what the run's steps did in its sandboxes is still there. Sandboxes of isolated steps
// are closed with their steps.
func (o *runsResumeOptions) checkSandboxes(ctx context.Context, m *session.Manager, runID string, entries []workflow.Entry) error {
	if o.fresh {
		return nil
	}
	gone, err := m.Gone(ctx, session.Scope{Namespace: session.NamespaceWorkflow, ID: runID})
	if err != nil {
		return err
	}
	gone = slices.DeleteFunc(gone, func(k session.Key) bool { return isolated.Is(k.Name) })
	if len(gone) == 0 {
		return nil
	}
	names := make([]string, len(gone))
	for i, key := range gone {
		names[i] = key.Name
	}
	return fail(exitNotFound, fmt.Errorf("the files of run %s are gone: it had the sandbox %s, which was removed", runID, strings.Join(names, ", ")),
		"pass --fresh-sandbox to go on with an empty one, or give the run up: workcell runs cancel "+runID)
}
