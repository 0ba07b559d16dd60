//go:build !no_postgres

package runcmd

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/workflow/worker"
)

// maxWorkerRuns is the maximum of --max-runs.
const maxWorkerRuns = 1000

func newWorkerCmd(a *command) *cobra.Command {
	o := worker.Options{MaxRuns: 4}
	cmd := a.Verb(cli.EngineFlags|cli.ImageFlags|cli.AgentFlags|cli.HostToolFlags|cli.AuditFlags, &cobra.Command{
		Use:   "worker",
		Short: "Run queued workflows",
		Long: `Run workflows from the queue in the PostgreSQL database (--state), and resume the runs of killed workers. To
add a workflow to the queue, use ` + "`workcell run --detach`" + `. You can start any number of workers, on one or
more hosts. Only one worker at a time executes a run. The run uses its own flags, the API keys in the worker's
environment, and the configuration on the worker's host.

On the first Ctrl-C or SIGTERM, the worker starts no more runs and waits up to --grace for its current runs to finish.
Unfinished runs are interrupted, and another worker resumes them, in the same sandboxes if it can connect to their
engine. On a second signal, the worker exits immediately.`,
		Example: "  export WORKCELL_STATE=postgres://workcell@db.example.com/workcell\n" +
			"  workcell worker --max-runs 8\n" +
			"  workcell worker --backend docker --grace 5m",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.MaxRuns < 1 || o.MaxRuns > maxWorkerRuns {
				return app.InvalidFlag("max-runs", o.MaxRuns, fmt.Sprintf("must be 1 to %d", maxWorkerRuns))
			}
			if o.Grace < 0 {
				return app.InvalidFlag("grace", o.Grace, "for example --grace 5m")
			}
			return a.Work(cmd.Context(), o)
		},
	})
	f := cmd.Flags()
	f.IntVar(&o.MaxRuns, "max-runs", o.MaxRuns, "maximum number of concurrent runs")
	f.DurationVar(&o.Grace, "grace", 0, "how long to wait for running workflows on shutdown")
	return cmd
}
