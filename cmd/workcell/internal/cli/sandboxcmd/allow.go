package sandboxcmd

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
)

func newSandboxAllowCmd(a *command) *cobra.Command {
	return a.Verb(cli.EngineFlags, &cobra.Command{
		Use:   "allow [flags] SANDBOX HOST…",
		Short: "Allow a sandbox to reach more hosts",
		Long: `Allow a sandbox that was created with network.allow to reach more hosts. HOST has the same forms as in
network.allow: NAME, *.NAME, NAME:PORT, or registry:NAME. New connections can use the hosts until the process that
owns the sandbox exits. Hosts in network.deny are still refused.`,
		Example: "  workcell sandbox allow sbx_… files.example.org registry:npm",
		Args:    cobra.MinimumNArgs(2),
		RunE:    a.managed(app.StateWanted, first, a.allowHosts),
	})
}

func (a *command) allowHosts(ctx context.Context, m *app.Manager, args []string) error {
	info, err := m.Find(ctx, args[0])
	if err != nil {
		return err
	}
	if info.Egress.IsZero() {
		return app.UsageError(fmt.Errorf("sandbox %s was created without network.allow", info.ID),
			"set network.allow in the file of the workflow or agent; `sandbox open` does not support it")
	}
	return m.AllowHosts(info.ID, args[1:]...)
}
