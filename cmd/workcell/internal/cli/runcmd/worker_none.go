//go:build no_postgres

package runcmd

import (
	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
)

func newWorkerCmd(*command) *cobra.Command {
	return &cobra.Command{
		Use: "worker", Short: "Not available in this build", Hidden: true, DisableFlagParsing: true, RunE: func(*cobra.Command, []string) error { return app.ErrNoQueue },
	}
}
