//go:build no_postgres

package runcmd

import (
	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
)

func newWorkerCmd(*command) *cobra.Command { return cli.Absent("worker", app.ErrNoQueue) }
