package admincmd

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/cli"
	"github.com/workcell-dev/workcell/workflow"
)

func newDevCmd(a *command) *cobra.Command {
	const groups = cli.EngineFlags | cli.ImageFlags | cli.ModelFlags | cli.AgentFlags | cli.HostToolFlags |
		cli.AgentsFlags | cli.PoolFlags
	return a.Verb(groups, &cobra.Command{
		Use:     "dev PATH…",
		Example: "  genkit start -- workcell dev examples/agents examples/workflows/debug-and-fix.yaml",
		Short:   "Serve agents and workflows to Genkit's Developer UI",
		Long: `Serve agents and workflows to the Genkit Developer UI until you interrupt the command. PATH is a workflow, an
agent, or a directory of agents. Start this command with the Genkit CLI:

  genkit start -- workcell dev examples/agents examples/workflows/debug-and-fix.yaml

The UI shows workflows as flows, agents as prompts, and sandbox tools as tools that you can run.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			workflows, files, err := devFiles(args, a.Options.Agents)
			if err != nil {
				return err
			}
			// Genkit reads it at startup. `genkit start` sets it.
			if err := os.Setenv("GENKIT_ENV", "dev"); err != nil {
				return err
			}
			return a.ServeDev(cmd.Context(), workflows, files)
		},
	})
}

// devFiles loads workflows and finds all agents.
func devFiles(args []string, agents string) ([]*workflow.Workflow, map[string]string, error) {
	var workflows []*workflow.Workflow
	files := map[string]string{}
	for _, arg := range args {
		st, err := os.Stat(arg)
		switch {
		case err != nil:
			return nil, nil, app.Fail(app.ExitInvalid, err, "")
		case st.IsDir():
			dir := app.AgentFiles{Dirs: []string{arg}}
			for _, name := range dir.List() {
				files[name] = filepath.Join(arg, name+app.AgentExt)
			}
		case strings.HasSuffix(arg, app.AgentExt):
			files[strings.TrimSuffix(filepath.Base(arg), app.AgentExt)] = arg
		default:
			p, err := app.LoadProgram(arg, agents)
			if err != nil {
				return nil, nil, err
			}
			workflows = append(workflows, p.Workflow)
			maps.Copy(files, p.Files)
		}
	}
	if len(workflows)+len(files) == 0 {
		return nil, nil, app.UsageError(errors.New("no agents or workflows specified"),
			"specify workflows, agents, or directories of agents")
	}
	return workflows, files, nil
}
