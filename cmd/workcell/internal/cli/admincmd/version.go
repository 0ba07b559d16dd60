package admincmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/reaper"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/guest/embed"
)

type versionInfo struct {
	Version string `json:"version"`
	Guest   string `json:"guest"` // version of the embedded guest agent
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func newVersionCmd(a *command) *cobra.Command {
	return a.Verb(cli.OutputFlags, &cobra.Command{
		Use:     "version",
		Example: "  workcell version -o json",
		Short:   "Print the Workcell and guest agent versions",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := versionInfo{
				Version: a.Options.Version, Guest: embed.Version(),
				Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
			}
			text := fmt.Sprintf("workcell %s (guest %s, %s, %s/%s)", v.Version, v.Guest, v.Go, v.OS, v.Arch)
			return a.PrintLines(v, text)
		},
	})
}

// newReaperCmd returns the command of the reaper process. Users do not run it.
func newReaperCmd(a *command) *cobra.Command {
	owner, engine := "", ""
	cmd := a.Verb(cli.EngineFlags, &cobra.Command{
		Use:    reaper.Command + " --owner ID",
		Short:  "Clean up after another process exits",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if owner == "" || a.Options.Backend == "" || !filepath.IsAbs(a.Options.StateDir) {
				return app.UsageError(errors.New("--owner, --backend, and --state-dir are required"),
					"Workcell starts this command automatically")
			}
			if engine == "" {
				var err error
				if engine, err = a.Engines().ID(cmd.Context(), a.Options.Backend); err != nil {
					return err
				}
			}
			r := &reaper.Reaper{
				State: state.Place{Dir: state.Dir(a.Options.StateDir), URL: a.Options.Env.Get(state.Variable)}, Engine: engine,
				Logger: a.Logger(),
				Open: func(ctx context.Context) (backend.SandboxBackend, error) {
					if id, err := a.Engines().ID(ctx, a.Options.Backend); err != nil || id != engine {
						return nil, cmp.Or(err, fmt.Errorf("the address leads to another engine: %s", id))
					}
					return a.Engines().Open(ctx, a.Options.Backend)
				},
			}
			return r.Run(cmd.Context(), owner)
		},
	})
	cmd.Flags().StringVar(&owner, "owner", "", "`ID` of the owner to wait for")
	cmd.Flags().StringVar(&engine, "engine", "", "engine `ID` in the records of its sandboxes")
	return cmd
}
