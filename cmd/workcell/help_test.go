package main

import (
	"io"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
)

// TestEveryCommandHasAnExample verifies that --help of every command has examples, and each line is an existing
// command.
func TestEveryCommandHasAnExample(t *testing.T) {
	t.Parallel()
	root := cli.Root(cli.New(strings.NewReader(""), io.Discard, io.Discard, ""), commands()...)
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			check(sub)
		}
		if cmd.HasAvailableSubCommands() || cmd.Hidden || cmd.Name() == "help" || cmd.HasParent() && cmd.Parent().Name() == "completion" {
			// Defined by cobra.
			return
		}
		if cmd.Example == "" {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		for line := range strings.Lines(cmd.Example) {
			if _, after, ok := strings.Cut(line, "workcell "); ok {
				found, _, err := root.Find(strings.Fields(after))
				if err != nil || !found.Runnable() || found.HasAvailableSubCommands() {
					t.Errorf("%s: example %q: %v, %v", cmd.CommandPath(), line, found.CommandPath(), err)
				}
			}
		}
	}
	check(root)
}
