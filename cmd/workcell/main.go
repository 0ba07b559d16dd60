// Command workcell runs agents and workflows in sandboxes, and shows and uses the sandboxes themselves.
//
// Data goes to standard output, everything else to standard error. See `workcell --help` for the commands and the
// table of exit codes.
package main

import (
	"context"
	"os"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli/admincmd"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli/runcmd"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli/sandboxcmd"
)

// version is set by release builds with -ldflags "-X main.version=v1.2.3".
var version string

func main() {
	stdout := os.Stdout
	// Some libraries print to os.Stdout (dotprompt does, for YAML it cannot read). Data must stay pure, so whatever is
	// not written through the command's own writer lands on standard error.
	os.Stdout = os.Stderr
	os.Exit(cli.Run(context.Background(), os.Args[1:], cli.New(os.Stdin, stdout, os.Stderr, version), commands()...))
}

// commands returns the groups of commands.
func commands() []cli.Group {
	return []cli.Group{runcmd.Commands, sandboxcmd.Commands, admincmd.Commands}
}
