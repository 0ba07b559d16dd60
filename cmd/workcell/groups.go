package main

import (
	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/reaper"
)

// runCommands returns the commands that run agents and workflows.
func runCommands(a *command) []*cobra.Command {
	return []*cobra.Command{newRunCmd(a), newRunsCmd(a), newWorkerCmd(a), newAgentCmd(a), newValidateCmd(a)}
}

// sandboxCommands returns the commands for sandboxes.
func sandboxCommands(a *command) []*cobra.Command { return []*cobra.Command{newSessionsCmd(a)} }

// adminCommands returns the commands that serve, check, and configure.
func adminCommands(a *command) []*cobra.Command {
	list := []*cobra.Command{
		newMCPCmd(a), newToolsCmd(a), newDevCmd(a), newGuestCmd(a), newDoctorCmd(a), newCacheCmd(a), newConfigCmd(a), newVersionCmd(a),
	}
	if reaper.Supported {
		list = append(list, newReaperCmd(a))
	}
	return list
}
