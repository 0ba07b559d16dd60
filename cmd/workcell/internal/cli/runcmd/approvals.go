package runcmd

import (
	"cmp"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

func newApprovalsCmd(a *command) *cobra.Command {
	tool, note := false, ""
	allow := a.answering("allow APPROVAL", "Allow a call that waits for approval",
		"  workcell approvals allow 4f7d2k9q\n  workcell approvals allow 4f7d2k9q --tool", func() hosttools.Decision {
			return hosttools.Decision{Allow: true, For: map[bool]string{true: hosttools.ForTool}[tool]}
		})
	allow.Flags().BoolVar(&tool, "tool", false, "also allow all later calls of this tool in this run")
	deny := a.answering("deny APPROVAL", "Deny a call that waits for approval",
		`  workcell approvals deny 4f7d2k9q --note "refund at most 50"`, func() hosttools.Decision {
			return hosttools.Decision{Note: note}
		})
	deny.Flags().StringVar(&note, "note", "", "`TEXT`: reason for the code that calls the tool")
	return cli.Subcommands(&cobra.Command{
		Use: "approvals", Short: "Answer calls that wait for approval",
		Long: `List the host tool calls that are waiting for approval, and allow or deny them, in all processes with
the same state. The first answer counts, even if the run also asks at its terminal. After 15 minutes without an answer,
a call is refused.

If a run has no terminal, these calls are refused immediately. To wait for an answer, set approvals: wait in
workcell.yaml, or keep a page of ` + "`workcell ui`" + ` open, where you can also answer.`,
	}, a.Verb(cli.OutputFlags, &cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List calls that wait for approval, oldest first", Args: cobra.NoArgs,
		Example: "  workcell approvals ls -o json",
		RunE: a.journalled(func(ctx context.Context, j runstore.Store, _ []string) error {
			list, err := a.Approvals(ctx, j)
			if err != nil {
				return err
			}
			head := []string{"ID", "TOOL", "AGENT", "RUN", "TIME LEFT", "ARGUMENTS"}
			return cli.PrintList(a.Command, list, head, func(q runstore.Approval) []string {
				return []string{q.ID, q.Server + "." + q.Tool, q.Agent, q.Run, app.Age(time.Until(q.Until)), string(q.Args)}
			})
		}),
	}), allow, deny)
}

// answering returns a command to answer a call.
func (a *command) answering(use, short, example string, decide func() hosttools.Decision) *cobra.Command {
	return a.Verb(cli.OutputFlags, &cobra.Command{
		Use: use, Short: short, Args: cobra.ExactArgs(1), Example: example,
		RunE: a.journalled(func(ctx context.Context, j runstore.Store, args []string) error {
			q, err := a.Answer(ctx, j, args[0], decide(), cmp.Or(a.Options.Env.Get("USER"), "the approvals command"))
			if err != nil {
				return err
			}
			return a.PrintLines(q, q.Server+"."+q.Tool+": "+q.Answer)
		}),
	})
}
