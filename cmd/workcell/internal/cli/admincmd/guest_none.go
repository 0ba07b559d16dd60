//go:build no_kubernetes

package admincmd

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
)

func newGuestCmd(*command) *cobra.Command {
	return &cobra.Command{Use: "guest", Short: "Not available in this build", Hidden: true, DisableFlagParsing: true, RunE: func(*cobra.Command, []string) error {
		return app.Fail(app.ExitUnavailable, errors.New("the guest agent image requires Kubernetes, which this build does not include (tag no_kubernetes)"),
			"use a build with Kubernetes")
	}}
}
