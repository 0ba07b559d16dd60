// Command workcell runs agents and workflows in sandboxes, and manages the sandboxes themselves.
//
// It writes data to standard output and everything else to standard error. See `workcell --help` for the commands and
// the exit codes.
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
	// Some libraries print to os.Stdout, for example dotprompt for unreadable YAML. Standard output is reserved for data,
	// so redirect all output that bypasses the command's writer to standard error.
	os.Stdout = os.Stderr
	os.Exit(cli.Run(context.Background(), os.Args[1:], cli.New(os.Stdin, stdout, os.Stderr, version), commands()...))
}

// commands returns the groups of commands.
func commands() []cli.Group {
	return []cli.Group{runcmd.Commands, sandboxcmd.Commands, admincmd.Commands}
}
