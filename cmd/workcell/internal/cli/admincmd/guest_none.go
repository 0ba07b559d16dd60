//go:build no_kubernetes

package admincmd

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
)

func newGuestCmd(*command) *cobra.Command {
	return cli.Absent("guest", app.Fail(app.ExitUnavailable,
		errors.New("the guest agent image requires Kubernetes, which this build does not include (tag no_kubernetes)"),
		"use a build with Kubernetes"))
}
