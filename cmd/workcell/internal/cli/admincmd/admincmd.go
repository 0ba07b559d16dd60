// Package admincmd contains the commands to serve sandboxes, check the host, and show the configuration.
package admincmd

import (
	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/reaper"
)

// command is a command of this group.
type command struct{ *cli.Command }

// Commands returns the commands to serve, check, and configure.
func Commands(c *cli.Command) []*cobra.Command {
	a := &command{c}
	list := []*cobra.Command{
		newMCPCmd(a), newUICmd(a), newToolsCmd(a), newDevCmd(a), newGuestCmd(a), newDoctorCmd(a), newCacheCmd(a),
		newConfigCmd(a), newVersionCmd(a),
	}
	if reaper.Supported {
		list = append(list, newReaperCmd(a))
	}
	return list
}
