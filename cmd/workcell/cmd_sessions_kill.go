package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

type sessionsKillOptions struct {
	engine engineFlags
	out    outputFlag
	all    bool
	signal string
}

func newSessionsKillCmd(a *app) *cobra.Command {
	o := &sessionsKillOptions{}
	cmd := &cobra.Command{
		Use:   "kill [flags] SANDBOX EXEC_ID… | --all SANDBOX",
		Short: "End commands that run in a sandbox; the sandbox stays",
		Long: `End commands that run in a sandbox, with all that they started: by TERM, and two seconds later by KILL what is left. The
sandbox stays, and who started the command is told that it was killed. ` + "`workcell sessions logs SANDBOX`" + ` lists the commands.

With --signal they get that signal and nothing else follows. Prints the id of each command; one that has ended before is
no error.`,
		Example: "  workcell sessions kill mybox exec_…\n  workcell sessions kill --signal INT mybox exec_…\n  workcell sessions kill --all mybox",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 || o.all == (len(args) > 1) {
				return usageError(errors.New("name a sandbox and the commands to end, or pass --all"), "`workcell sessions logs SANDBOX` lists them")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withManager(cmd.Context(), o.engine, imageFlags{}, stateWanted, func(ctx context.Context, m *session.Manager) error {
				s, err := connect(ctx, m, args[0])
				if err != nil {
					return err
				}
				return o.run(ctx, a, s, args[1:])
			})
		},
	}
	o.engine.addTo(cmd)
	o.out.addTo(cmd)
	f := cmd.Flags()
	f.BoolVar(&o.all, "all", false, "every command that runs, and without --signal what ended ones left running")
	f.StringVarP(&o.signal, "signal", "s", "", "signal to send, INT or SIGINT for example (default TERM, then KILL)")
	return cmd
}

// killedExec is a command in the output of `sessions kill`.
type killedExec struct {
	ExecID string            `json:"exec_id"`
	Status session.ExecState `json:"status"` // running after a signal that it takes, or when it takes a moment to end
}

func (o *sessionsKillOptions) run(ctx context.Context, a *app, s *session.Session, ids []string) error {
	killed := []killedExec{}
	done := func(st session.ExecStatus) {
		if killed = append(killed, killedExec{st.ExecID, st.Status}); o.out == "" || o.out == outputTable {
			fmt.Fprintln(a.stdout, st.ExecID) // as soon as it is true
		}
	}
	var errs []error
	if o.all {
		list := s.ListExecs
		if o.signal == "" {
			list = s.KillAll
		}
		known, err := list(ctx)
		if err != nil {
			return err
		}
		for _, st := range known {
			if o.signal == "" {
				done(st)
			} else if !st.Done() {
				ids = append(ids, st.ExecID)
			}
		}
	}
	for _, id := range ids {
		st, err := s.KillExec(ctx, id, o.signal)
		if err != nil {
			errs = append(errs, o.explain(id, err))
			continue
		}
		done(st)
	}
	return errors.Join(append(errs, o.out.write(a.stdout, killed, func(io.Writer) error { return nil }))...)
}

// explain keeps a missing command from being taken for a missing sandbox.
func (o *sessionsKillOptions) explain(id string, err error) error {
	switch {
	case errors.Is(err, backend.ErrNotFound):
		return fail(exitFailed, fmt.Errorf("%s: %w", id, err), "`workcell sessions logs SANDBOX` lists the commands")
	case errors.Is(err, backend.ErrInvalid):
		return usageError(fmt.Errorf("%s: %w", id, err), "--signal takes the name of a signal, the command its id from `workcell sessions logs SANDBOX`")
	}
	return err
}
