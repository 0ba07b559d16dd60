//go:build no_ui

package admincmd

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
)

func newUICmd(*command) *cobra.Command {
	return cli.Absent("ui", app.Fail(app.ExitUnavailable,
		errors.New("this build does not include the pages (tag no_ui)"), "use a build without the tag no_ui"))
}
