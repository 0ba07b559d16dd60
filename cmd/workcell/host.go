package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing/fstest"

	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/core/logger"
	"github.com/firebase/genkit/go/genkit"
	"github.com/spf13/cobra"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/models"
	"github.com/workcell-dev/workcell/internal/otelsetup"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/scripted"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// modelFlags choose the model in place of what the agents' files name.
type modelFlags struct {
	model        string
	traceContent bool
}

func (f *modelFlags) addTo(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.model, "model", "",
		"provider/name of the model to use in place of what the agents name, or scripted/PATH.yaml for recorded answers")
	cmd.Flags().BoolVar(&f.traceContent, "trace-content", false,
		"export prompts, answers, tool calls and error texts with the traces; they may hold secrets")
}

// script returns the path in "scripted/PATH.yaml".
func (f *modelFlags) script() (path string, ok bool) {
	return strings.CutPrefix(f.model, scripted.Provider+"/")
}

// host is a Genkit instance with the agents that a command needs.
type host struct {
	g      *genkit.Genkit
	agents map[string]*tools.Agent
	docs   map[string]*frontmatter.Document
	model  func(agent string) string             // in place of the agent's own; empty keeps that
	onTool func(agent string, e tools.ToolEvent) // tool calls as they happen; may be nil
	script *scripted.Plugin                      // plays recorded answers; nil when models are asked
	env    environ.Lookup
}

var (
	_ workflow.AgentRunner      = (*host)(nil)
	_ workflow.SandboxDescriber = (*host)(nil)
)

// newHost loads the agents' files and starts Genkit with the model plugins that they need.
func (a *app) newHost(ctx context.Context, m *session.Manager, files map[string]string, f modelFlags) (*host, error) {
	h := &host{agents: map[string]*tools.Agent{}, docs: map[string]*frontmatter.Document{}, env: a.env}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(files)) {
		doc, err := checkAgent(files[name])
		if err != nil {
			errs = append(errs, err)
			continue
		}
		h.docs[name] = doc
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fail(exitInvalid, err, "")
	}
	plugins, err := h.plugins(a, f)
	if err != nil {
		return nil, err
	}
	plugins = append(plugins, &tools.Plugin{Manager: m, Logger: a.logger()})
	if h.g, err = a.initGenkit(ctx, plugins...); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		agent, err := tools.LoadAgent(h.g, files[name])
		if err != nil {
			return nil, fail(exitInvalid, err, "")
		}
		h.agents[name] = agent
	}
	return h, nil
}

// plugins builds what plays the models, and notes on standard error when answers are recorded.
func (h *host) plugins(a *app, f modelFlags) ([]api.Plugin, error) {
	if path, ok := f.script(); ok {
		script, err := scripted.Load(path)
		if err != nil {
			return nil, fail(exitInvalid, err, "")
		}
		h.model = scripted.ModelName
		fmt.Fprintf(a.stderr, "workcell: scripted model: answers are recorded in %s, no model is asked\n", sanitize.Line(path))
		h.script = scripted.NewPlugin(script)
		return []api.Plugin{h.script}, nil
	}
	h.model = func(string) string { return f.model }
	if f.model != "" {
		return models.Plugins(a.env, []models.Use{{Model: f.model}})
	}
	var uses []models.Use
	for _, name := range slices.Sorted(maps.Keys(h.docs)) {
		doc := h.docs[name]
		if doc.Meta.Model == "" {
			return nil, fail(exitModel, fmt.Errorf("agent %s names no model", name),
				"add model: provider/name to "+doc.File+", or pass --model provider/name")
		}
		uses = append(uses, models.Use{Model: doc.Meta.Model, Agent: name})
	}
	return models.Plugins(a.env, uses)
}

// RunAgent is the agents' side of workflow.Engine.
func (h *host) RunAgent(ctx context.Context, name string, input map[string]any) (workflow.AgentOutput, error) {
	res, err := h.run(ctx, name, input)
	if err != nil {
		return workflow.AgentOutput{}, err
	}
	return workflow.AgentOutput{Text: res.Text, Output: res.Output}, nil
}

func (h *host) run(ctx context.Context, name string, input map[string]any) (tools.AgentResult, error) {
	agent := h.agents[name]
	if agent == nil {
		return tools.AgentResult{}, fmt.Errorf("agent %q is not loaded", name)
	}
	opts := &tools.RunOptions{Model: h.model(name)}
	if h.onTool != nil {
		opts.OnTool = func(e tools.ToolEvent) { h.onTool(name, e) }
	}
	res, err := agent.Run(scripted.WithRun(ctx, workflow.RunIDFromContext(ctx), input), input, opts)
	if err != nil && ctx.Err() == nil && strings.HasPrefix(cmp.Or(opts.Model, agent.Document().Meta.Model), "ollama/") {
		err = models.OllamaError(ctx, h.env, err)
	}
	return res, err
}

// resume makes recorded answers begin where those of an interrupted run ended. Attempts that are run again take theirs once
// more.
func (h *host) resume(entries []workflow.Entry) {
	if h.script == nil {
		return
	}
	for _, e := range entries {
		if e.Kind == workflow.EntryStepFinished && e.Agent != "" && e.Status != workflow.StatusSkipped {
			h.script.Skip(e.RunID, e.Agent)
		}
	}
}

// AgentSandbox returns which sandbox an agent wants to share with its run.
func (h *host) AgentSandbox(name string) (session.Request, bool) {
	agent := h.agents[name]
	if agent == nil {
		return session.Request{}, false
	}
	return agent.SharedSandbox()
}

// initGenkit starts Genkit without what a command must not have: the prompts of whatever directory it was started in,
// log lines, and panics. A plugin that cannot be set up panics; that is the user's configuration, so it becomes an error.
func (a *app) initGenkit(ctx context.Context, plugins ...api.Plugin) (g *genkit.Genkit, err error) {
	if a.env.Get("WORKCELL_DEBUG") == "" {
		logger.SetLevel(slog.LevelWarn)
	}
	defer func() {
		if r := recover(); r != nil {
			g, err = nil, fail(exitModel, fmt.Errorf("cannot set up the models: %v", r), "")
		}
	}()
	return genkit.Init(ctx,
		genkit.WithPlugins(plugins...),
		genkit.WithPromptFS(fstest.MapFS{}), genkit.WithPromptDir("."), // else ./prompts is loaded
	), nil
}

// startTracing sets traces up, which must come before initGenkit.
func (a *app) startTracing(ctx context.Context, content bool) (context.Context, *otelsetup.Tracing) {
	return otelsetup.Start(ctx, otelsetup.Options{Env: a.env, Stderr: a.stderr, Version: buildVersion(), Content: content})
}
