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

	"github.com/workcell-dev/workcell/cmd/workcell/internal/models"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/otelsetup"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/scripted"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/transcript"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// scriptOf returns the path in "scripted/PATH.yaml".
func scriptOf(model string) (path string, ok bool) {
	return strings.CutPrefix(model, scripted.Provider+"/")
}

// host is a Genkit instance with the agents that a command needs, the manager of their sandboxes and what shows progress.
type host struct {
	*app
	m       *manager
	hosts   *hosttools.Registry // tools of the host for agents' code; nil for none
	p       Front               // nil in servers
	g       *genkit.Genkit
	agents  map[string]*tools.Agent
	docs    map[string]*frontmatter.Document
	modelOf func(agent string) string             // in place of the agent's own; empty keeps that
	onTool  func(agent string, e tools.ToolEvent) // tool calls as they happen; may be nil
	onReply func(tools.AgentResult, error)        // what an agent answered; may be nil
	approve hosttools.ApproverFunc                // asked about calls of host tools; nil for nobody
	script  *scripted.Plugin                      // plays recorded answers; nil when models are asked
	tel     *otelsetup.Tracing
	traced  string // the run whose spans are kept, empty for none
}

var (
	_ workflow.AgentRunner      = (*host)(nil)
	_ workflow.SandboxDescriber = (*host)(nil)
)

// newHost loads the agents' files and starts Genkit with the model plugins that they need.
func (a *app) newHost(ctx context.Context, m *manager, hosts *hosttools.Registry, files map[string]string) (*host, error) {
	h := &host{app: a, m: m, hosts: hosts, agents: map[string]*tools.Agent{}, docs: map[string]*frontmatter.Document{}}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(files)) {
		doc, err := checkAgent(files[name])
		if err == nil {
			err = a.checkImage(doc)
		}
		if err == nil {
			err = errors.Join(hostToolProblems(ctx, hosts, doc)...)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		h.docs[name] = doc
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fail(exitInvalid, err, "")
	}
	plugins, proxy, err := h.plugins()
	if err != nil {
		return nil, err
	}
	plugins = append(plugins, &tools.Plugin{Manager: m.Manager, Logger: a.logger(), HostTools: hosts, Models: proxy, ExecutorImages: a.executorImages()})
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

// plugins builds what plays the models, and notes on standard error when answers are recorded. The proxy is for coding agents, nil
// without one.
func (h *host) plugins() ([]api.Plugin, *model.Proxy, error) {
	genkit, coding, err := h.modelUses()
	if err != nil {
		return nil, nil, err
	}
	if path, ok := scriptOf(h.opts.Model); ok {
		if len(coding) > 0 {
			return nil, nil, usageError(errScriptedCoding,
				"for recorded answers, set the provider's *_BASE_URL to a server that replays them, see docs/executors.md")
		}
		script, err := scripted.Load(path)
		if err != nil {
			return nil, nil, fail(exitInvalid, err, "")
		}
		h.modelOf = scripted.ModelName
		h.notice("scripted model: using recorded answers in %s instead of a model", path)
		h.script = scripted.NewPlugin(script)
		return []api.Plugin{h.script}, nil, nil
	}
	h.modelOf = func(string) string { return h.opts.Model }
	proxy, err := h.modelProxy(coding)
	if err != nil {
		return nil, nil, err
	}
	plugins, err := models.Plugins(h.opts.Env, genkit)
	return plugins, proxy, err
}

// RunAgent is the agents' side of workflow.Engine.
func (h *host) RunAgent(ctx context.Context, name string, input map[string]any) (workflow.AgentOutput, error) {
	res, err := h.run(ctx, name, input)
	if h.onReply != nil {
		h.onReply(res, err)
	}
	return workflow.AgentOutput{Text: res.Text, Output: res.Output, CostUSD: res.Executor.Cost()}, err
}

func (h *host) run(ctx context.Context, name string, input map[string]any) (tools.AgentResult, error) {
	agent := h.agents[name]
	if agent == nil {
		return tools.AgentResult{}, fmt.Errorf("agent %q is not loaded", name)
	}
	opts := &tools.RunOptions{Model: h.modelOf(name), OnApproval: h.approve}
	if h.onTool != nil {
		opts.OnTool = func(e tools.ToolEvent) { h.onTool(name, e) }
	}
	res, err := agent.Run(scripted.WithRun(ctx, workflow.RunIDFromContext(ctx), input), input, opts)
	if err != nil {
		err = keyless{err, models.Secrets(h.opts.Env).Replace(err.Error())}
	}
	if err != nil && ctx.Err() == nil && strings.HasPrefix(cmp.Or(opts.Model, agent.Document().Meta.Model), "ollama/") {
		err = models.OllamaError(ctx, h.opts.Env, err)
	}
	return res, err
}

// keyless is an error without keys in its text.
type keyless struct {
	error
	text string // without keys of providers: steps that follow read it in their sandboxes
}

func (e keyless) Error() string { return e.text }
func (e keyless) Unwrap() error { return e.error }

// resume makes recorded answers begin where those of an interrupted run ended. Conversations that are continued keep
// theirs; attempts that are run again from their start take theirs once more.
func (h *host) resume(entries []workflow.Entry) {
	if h.script == nil {
		return
	}
	finished := map[string]bool{} // attempts of which it is known what they took
	attempt := func(e workflow.Entry) string { return fmt.Sprintf("%s %d %d", e.Path, e.Visit, e.Attempt) }
	for _, e := range entries {
		if e.Kind == workflow.EventStepProgress && h.script.Continues(e.RunID, e.Agent, transcript.Refs(e.Conversation)) {
			finished[attempt(e)] = true
		}
	}
	for _, e := range entries {
		if e.Kind == workflow.EventStepFinished && e.Agent != "" && e.Status != workflow.StatusSkipped && !finished[attempt(e)] {
			h.script.Played(e.RunID, e.Agent)
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
	if a.opts.Env.Get("WORKCELL_DEBUG") == "" {
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

// startTracing sets traces and metrics up as it is configured, which must come before initGenkit. keep keeps the spans of a
// run (host.keepTrace).
func (a *app) startTracing(ctx context.Context, keep bool) (context.Context, *otelsetup.Tracing, error) {
	c, err := a.config()
	if err == nil {
		err = a.configureTelemetry(c)
	}
	if err != nil {
		return ctx, nil, err
	}
	ctx, tel := otelsetup.Start(ctx, otelsetup.Options{
		Env: a.opts.Env, Stderr: a.opts.Stderr, Version: a.opts.Version, Content: c.TraceContent, Keep: keep,
	})
	return ctx, tel, nil
}

// keepTrace keeps the spans of this process with a run, for `workcell runs trace`.
func (h *host) keepTrace(runID string) {
	if dir, err := h.runFiles(); err == nil { // else there was no manager
		if h.traced == "" && h.tel.KeepIn(dir.Of(runID)) { // not of workflows that it runs inside
			h.traced = runID
		}
	}
}

// startAudit records what is done under the context that it returns in the file of --audit, if there is one. When that
// cannot be written the context ends. end closes the file and adds such a failure to the command's error.
func (a *app) startAudit(ctx context.Context) (_ context.Context, end func(error) error, err error) {
	if a.opts.Audit == "" {
		if a.opts.AuditHash {
			return ctx, nil, usageError(errors.New("--audit-hash requires --audit FILE"), "")
		}
		return ctx, func(err error) error { return err }, nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	log, err := audit.Open(a.opts.Audit, audit.Options{Hash: a.opts.AuditHash, OnFailure: cancel})
	if err != nil {
		cancel(nil)
		return ctx, nil, fail(exitFailed, err, "check that you can append to the --audit file")
	}
	return audit.NewContext(ctx, log), func(err error) error {
		cancel(nil)
		if failed := log.Close(); failed != nil && !errors.Is(err, audit.ErrWrite) {
			err = errors.Join(err, fail(exitFailed, failed, "Workcell stopped at the first missing record"))
		}
		return err
	}, nil
}

// withHost runs fn with agents, an engine and progress, and ends them all: sandboxes that are not kept are closed and
// traces are sent, whether or not ctx has ended. oneRun says that fn is one run, whose spans are kept.
func (a *app) withHost(ctx context.Context, use managerUse, files map[string]string, oneRun bool, fn func(context.Context, *host) error) (err error) {
	catchBrokenPipes()
	ctx, endAudit, err := a.startAudit(ctx)
	if err != nil {
		return err
	}
	defer func() { err = endAudit(err) }()
	ctx, tel, err := a.startTracing(ctx, oneRun)
	if err != nil {
		return err
	}
	defer func() {
		tel.Close(ctx)
		if id := tel.TraceID(); id != "" && tel.Exports() {
			a.notice("trace: %s", id)
		}
	}()
	return a.hosting(ctx, tel, use, files, oneRun, fn)
}

// hosting is withHost for who has what the whole process shares: the audit in ctx, and traces.
func (a *app) hosting(ctx context.Context, tel *otelsetup.Tracing, use managerUse, files map[string]string, oneRun bool, fn func(context.Context, *host) error) (err error) {
	hosts, endTools, err := a.startHostTools(ctx)
	if err != nil {
		return err
	}
	defer func() { err = endTools(err) }()
	m, err := a.openManager(ctx, use)
	if err != nil {
		return err
	}
	defer m.done()
	end := m.Close
	if a.opts.User != "" {
		ctx, end = session.WithUser(ctx, a.opts.User), m.Detach // the runs close their own sandboxes, and the user's stays
	}
	defer func() { err = errors.Join(err, end(context.WithoutCancel(ctx))) }()
	h, err := a.newHost(ctx, m, hosts, files)
	if err != nil {
		return err
	}
	if oneRun {
		if err := h.needHostTools(); err != nil {
			return err
		}
	}
	h.tel, h.p = tel, a.opts.Front(a.opts.Stderr)
	h.approve = h.p.Approver()
	defer func() {
		h.p.Close()
		if h.traced != "" {
			a.notice("to see the trace, run: workcell runs trace %s", h.traced)
		}
	}()
	return fn(ctx, h)
}
