package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/workflow"
)

func newDevCmd(a *app) *cobra.Command {
	agents := ""
	cmd := a.verb(engineFlags|imageFlags|modelFlags, &cobra.Command{
		Use:   "dev PATH…",
		Short: "Serve agents and workflows to the Genkit Developer UI",
		Long: `Serve agents and workflows to the Genkit Developer UI until it is interrupted. Start it from Genkit's own command:

  genkit start -- workcell dev examples/agents examples/workflows/debug-and-fix.yaml

Workflows show as flows, agents as prompts. A PATH is a workflow, an agent, or a directory of agents.`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			workflows, files, err := devFiles(args, agents)
			if err != nil {
				return err
			}
			// Genkit reads it when it starts; under `genkit start` it is set.
			if err := os.Setenv("GENKIT_ENV", "dev"); err != nil {
				return err
			}
			return a.withHost(cmd.Context(), files,
				func(ctx context.Context, h *host, m *session.Manager, p *progress) error {
					return serveDev(ctx, h, m, p, a, workflows)
				})
		},
	})
	agentsFlag(cmd, &agents, "workflows' agents")
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
			known := agentsFor(arg, agents)
			wf, err := workflow.Load(arg, &workflow.LoadOptions{Agents: known.known})
			if err != nil {
				return nil, nil, fail(exitInvalid, err, "")
			}
			workflows = append(workflows, wf)
			maps.Copy(files, agentPaths(known, wf))
		}
	}
	if len(workflows)+len(files) == 0 {
		return nil, nil, usageError(errors.New("there is nothing to serve"), "name workflows, agents, or directories of agents")
	}
	return workflows, files, nil
}

// serveDev registers the workflows and waits for the end of ctx, which is how the command is meant to end.
func serveDev(ctx context.Context, h *host, m *session.Manager, p *progress, a *app, workflows []*workflow.Workflow) error {
	events := &runProgress{p: p}
	h.onTool = events.tool
	engine := workflow.NewEngine(m, h, &workflow.Options{OnEvent: events.event, OnPull: p.Pull, Logger: a.logger()})
	for _, wf := range workflows {
		if err := engine.Register(h.g, wf); err != nil {
			return fail(exitInvalid, err, "")
		}
	}
	a.notice("serving %d workflow(s) and %d agent(s); Ctrl-C ends it", len(workflows), len(h.agents))
	<-ctx.Done()
	return nil
}
