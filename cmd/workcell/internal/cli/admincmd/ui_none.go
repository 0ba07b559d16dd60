//go:build no_ui

package admincmd

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
)

func newUICmd(*command) *cobra.Command {
	run := func(*cobra.Command, []string) error {
		return app.Fail(app.ExitUnavailable, errors.New("this build does not include the pages (tag no_ui)"),
			"use a build without the tag no_ui")
	}
	cmd := &cobra.Command{Use: "ui", Short: "Not available in this build", Hidden: true, RunE: run}
	cmd.DisableFlagParsing = true
	return cmd
}
