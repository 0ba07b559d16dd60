package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow"
)

func newDevCmd(a *command) *cobra.Command {
	cmd := a.verb(engineFlags|imageFlags|modelFlags|agentsFlags, &cobra.Command{
		Use:     "dev PATH…",
		Example: "  genkit start -- workcell dev examples/agents examples/workflows/debug-and-fix.yaml",
		Short:   "Serve agents and workflows to the Genkit Developer UI",
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
			// Genkit reads it when it starts; under `genkit start` it is set.
			if err := os.Setenv("GENKIT_ENV", "dev"); err != nil {
				return err
			}
			return a.withHost(cmd.Context(), managerUse{pool: &session.Request{}}, files, false, func(ctx context.Context, h *host) error { return h.serveDev(ctx, workflows) })
		},
	})
	a.poolFlag(cmd.Flags())
	return cmd
}

// devFiles loads workflows and finds all agents.
func devFiles(args []string, agents string) ([]*workflow.Workflow, map[string]string, error) {
	var workflows []*workflow.Workflow
	files := map[string]string{}
	for _, arg := range args {
		st, err := os.Stat(arg)
		switch {
		case err != nil:
			return nil, nil, fail(exitInvalid, err, "")
		case st.IsDir():
			dir := agentFiles{dirs: []string{arg}}
			for _, name := range dir.list() {
				files[name] = filepath.Join(arg, name+agentExt)
			}
		case strings.HasSuffix(arg, agentExt):
			files[strings.TrimSuffix(filepath.Base(arg), agentExt)] = arg
		default:
			wf, own, err := loadWorkflow(arg, agents)
			if err != nil {
				return nil, nil, err
			}
			workflows = append(workflows, wf)
			maps.Copy(files, own)
		}
	}
	if len(workflows)+len(files) == 0 {
		return nil, nil, usageError(errors.New("no agents or workflows specified"), "specify workflows, agents, or directories of agents")
	}
	return workflows, files, nil
}

// serveDev registers the workflows and waits for the end of ctx, which is how the command is meant to end, or of the lease.
func (h *host) serveDev(ctx context.Context, workflows []*workflow.Workflow) error {
	h.onTool = h.p.Tool
	engine := workflow.NewEngine(h.m.Manager, h, &workflow.Options{OnEvent: h.p.Event, OnPull: h.p.Pull, Logger: h.logger()})
	for _, wf := range workflows {
		if err := engine.Register(h.g, wf); err != nil {
			return fail(exitInvalid, err, "")
		}
	}
	h.notice("serving %d workflow(s) and %d agent(s); press Ctrl-C to stop", len(workflows), len(h.agents))
	var lost error
	state.AwaitLost(ctx, h.m.records, h.m.Owner(), func(err error) { lost = err })
	return lost
}
