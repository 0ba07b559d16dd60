package main

import (
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newManCmd returns the hidden command that writes the manual pages, for packagers.
func newManCmd() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual pages into a directory",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o777); err != nil {
				return err
			}
			return doc.GenManTree(cmd.Root(), &doc.GenManHeader{Title: "WORKCELL", Section: "1", Source: "workcell " + buildVersion()}, args[0])
		},
	}
}
