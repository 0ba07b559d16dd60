package main

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/reaper"
	"github.com/workcell-dev/workcell/internal/state"
)

// newReaperCmd returns the command that a reaper runs, which is not for people.
func newReaperCmd(a *app) *cobra.Command {
	owner := ""
	cmd := a.verb(engineFlags, &cobra.Command{
		Use:    reaper.Command + " --owner ID",
		Short:  "Remove what another process leaves, when it has ended",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if owner == "" || a.backend == "" || !filepath.IsAbs(a.stateDirFlag) {
				return usageError(errors.New("a reaper needs --owner, --backend and --state-dir"), "workcell starts it by itself")
			}
			r := &reaper.Reaper{
				Dir: state.Dir(a.stateDirFlag), Engine: a.engines().ID(a.backend), Logger: a.logger(),
				Open: func(ctx context.Context) (backend.SandboxBackend, error) {
					return a.engines().Open(ctx, a.backend)
				},
			}
			return r.Run(cmd.Context(), owner)
		},
	})
	cmd.Flags().StringVar(&owner, "owner", "", "whose end to wait for")
	return cmd
}
