package app

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
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/transcript"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
	"github.com/workcell-dev/workcell/workflow"
)

// ServeDev serves workflows and agents to the Genkit Developer UI until ctx is done or the ownership lease is lost.
// Canceling ctx is the normal end of the command. files are the agents' files by name.
func (a *App) ServeDev(ctx context.Context, workflows []*workflow.Workflow, files map[string]string) error {
	use := Use{Pool: &session.Request{}}
	return a.withHost(ctx, use, files, false, func(ctx context.Context, h *host) error {
		engine := workflow.NewEngine(h.m.Manager, h, &workflow.Options{
			OnEvent: h.p.Event, OnPull: h.p.Pull, Logger: h.Logger(),
		})
		for _, wf := range workflows {
			if err := engine.Register(h.g, wf); err != nil {
				return Fail(ExitInvalid, err, "")
			}
		}
		h.Notice("serving %s and %s; press Ctrl-C to stop",
			Counted(len(workflows), "workflow"), Counted(len(h.agents), "agent"))
		var lost error
		state.AwaitLost(ctx, h.m.Records, h.m.Owner(), func(err error) { lost = err })
		return lost
	})
}

// scriptOf returns the path of a model name such as "scripted/PATH.yaml".
func scriptOf(model string) (path string, ok bool) {
	return strings.CutPrefix(model, scripted.Provider+"/")
}

// host is a Genkit instance with the agents of a command, the manager of their sandboxes, and the progress display.
type host struct {
	*App
	m       *Manager
	hosts   *hosttools.Registry // host tools for agents' code; nil for none
	p       Front               // nil in servers
	g       *genkit.Genkit
	agents  map[string]*tools.Agent
	docs    map[string]*frontmatter.Document
	modelOf func(agent string) string             // overrides the agent's model; empty keeps it
	onTool  func(agent string, e tools.ToolEvent) // called for tool calls; may be nil
	onReply func(tools.AgentResult, error)        // called with an agent's answer; may be nil
	approve hosttools.Approver                    // decides on calls of host tools; nil for the approver of the context
	script  *scripted.Plugin                      // plays recorded answers; nil if real models are used
	tel     *otelsetup.Tracing
	traced  string // run whose spans are stored; empty for none
}

var _ workflow.AgentRunner = (*host)(nil)

// newHost loads the agents' files and starts Genkit with the required model plugins.
func (a *App) newHost(
	ctx context.Context, m *Manager, hosts *hosttools.Registry, files map[string]string,
) (*host, error) {
	h := &host{App: a, m: m, hosts: hosts, agents: map[string]*tools.Agent{}, docs: map[string]*frontmatter.Document{}}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(files)) {
		doc, err := tools.CheckAgent(files[name])
		if err == nil {
			err = cmp.Or(a.checkImage(doc), a.checkServices(doc))
		}
		if err == nil {
			err = HostToolProblems(ctx, hosts, doc)
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		h.docs[name] = doc
	}
	if err := errors.Join(errs...); err != nil {
		return nil, Fail(ExitInvalid, err, "")
	}
	plugins, proxy, err := h.plugins()
	if err != nil {
		return nil, err
	}
	plugins = append(plugins, &tools.Plugin{
		Manager: m.Manager, Logger: a.Logger(), HostTools: hosts, Models: proxy, ExecutorImages: a.executorImages(),
	})
	if h.g, err = a.initGenkit(ctx, plugins...); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		agent, err := tools.LoadAgent(h.g, files[name])
		if err != nil {
			return nil, Fail(ExitInvalid, err, "")
		}
		h.agents[name] = agent
	}
	return h, nil
}

// plugins returns the plugins for the models. It prints a notice on standard error if answers are recorded. The proxy
// is for coding agents, and nil without any.
func (h *host) plugins() ([]api.Plugin, *model.Proxy, error) {
	genkit, coding, err := h.modelUses()
	if err != nil {
		return nil, nil, err
	}
	if path, ok := scriptOf(h.opts.Model); ok {
		if len(coding) > 0 {
			err := errors.New("coding agents call their models over HTTP and cannot use a scripted model")
			return nil, nil, UsageError(err, "for recorded answers, set the provider's *_BASE_URL to a server "+
				"that replays them, see docs/guides/coding-agents.md")
		}
		script, err := scripted.Load(path)
		if err != nil {
			return nil, nil, Fail(ExitInvalid, err, "")
		}
		h.modelOf = scripted.ModelName
		h.Notice("scripted model: using recorded answers in %s instead of a model", path)
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

// RunAgent implements the agents for workflow.Engine.
func (h *host) RunAgent(ctx context.Context, name string, input map[string]any) (workflow.AgentOutput, error) {
	res, err := h.run(ctx, name, input)
	if h.onReply != nil {
		h.onReply(res, err)
	}
	out := workflow.OutputOf(res)
	if out.Usage != nil && h.script != nil {
		out.Usage.Estimated = true
	}
	return out, err
}

func (h *host) run(ctx context.Context, name string, input map[string]any) (tools.AgentResult, error) {
	agent := h.agents[name]
	if agent == nil {
		return tools.AgentResult{}, fmt.Errorf("agent %q is not loaded", name)
	}
	opts := &tools.RunOptions{Model: h.modelOf(name)}
	if h.onTool != nil {
		opts.OnTool = func(e tools.ToolEvent) { h.onTool(name, e) }
	}
	ctx = hosttools.WithApprover(ctx, cmp.Or(h.approve, hosttools.ApproverFromContext(ctx)))
	res, err := agent.Run(scripted.WithRun(ctx, workflow.RunIDFromContext(ctx), input), input, opts)
	if err != nil { // without provider keys, because later steps can read the text in their sandboxes
		err = &sanitize.Error{Text: models.Secrets(h.opts.Env).Replace(err.Error()), Err: err}
	}
	if err != nil && ctx.Err() == nil && strings.HasPrefix(cmp.Or(opts.Model, agent.Document().Meta.Model), "ollama/") {
		err = models.OllamaError(ctx, h.opts.Env, err)
	}
	return res, err
}

// resume skips the recorded answers already used by an interrupted run. Continued conversations keep their answers.
// Attempts that restart from the beginning use their answers again.
func (h *host) resume(entries []workflow.Entry) {
	if h.script == nil {
		return
	}
	finished := map[string]bool{} // attempts whose used answers are known
	attempt := func(e workflow.Entry) string { return fmt.Sprintf("%s %d %d", e.Path, e.Visit, e.Attempt) }
	for _, e := range entries {
		if e.Kind == workflow.EventStepProgress && h.script.Continues(e.RunID, e.Agent, transcript.Refs(e.Conversation)) {
			finished[attempt(e)] = true
		}
	}
	for _, e := range entries {
		ended := e.Kind == workflow.EventStepFinished && e.Status != workflow.StatusSkipped
		if ended && e.Agent != "" && !finished[attempt(e)] {
			h.script.Played(e.RunID, e.Agent)
		}
	}
}

// initGenkit starts Genkit without prompts of the working directory, log lines, and panics. A plugin with invalid
// configuration panics. initGenkit returns this panic as an error, because it is an error of the user's configuration.
func (a *App) initGenkit(ctx context.Context, plugins ...api.Plugin) (g *genkit.Genkit, err error) {
	if a.opts.Env.Get("WORKCELL_DEBUG") == "" {
		logger.SetLevel(slog.LevelWarn)
	}
	defer func() {
		if r := recover(); r != nil {
			g, err = nil, Fail(ExitModel, fmt.Errorf("cannot set up the models: %v", r), "")
		}
	}()
	return genkit.Init(ctx,
		genkit.WithPlugins(plugins...),
		genkit.WithPromptFS(fstest.MapFS{}), genkit.WithPromptDir("."), // otherwise Genkit loads ./prompts
	), nil
}

// startTracing sets up traces and metrics as configured. It must be called before initGenkit. keep stores the spans of
// a run (host.keepTrace).
func (a *App) startTracing(ctx context.Context, keep bool) (context.Context, *otelsetup.Tracing, error) {
	c, err := a.Config()
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

// keepTrace stores the spans of this process with a run, for `workcell runs trace`.
func (h *host) keepTrace(runID string) {
	if h.traced == "" && h.tel.KeepIn(h.m.runFiles().Of(runID)) { // only for the outermost workflow
		h.traced = runID
	}
}

// withHost runs fn with agents, an engine and progress, and ends them all: sandboxes not kept are closed and
// traces are sent, whether or not ctx has ended. oneRun means fn is one run, whose spans are kept.
func (a *App) withHost(
	ctx context.Context, use Use, files map[string]string, oneRun bool, fn func(context.Context, *host) error,
) error {
	return a.Observe(ctx, oneRun, func(ctx context.Context, tel *otelsetup.Tracing) error {
		return a.hosting(ctx, tel, use, files, oneRun, fn)
	})
}

// Observe starts the audit and the traces of this process, runs fn, and ends both. If a record cannot be written to the
// --audit file, the context of fn ends. The spans of one run are kept.
func (a *App) Observe(
	ctx context.Context, oneRun bool, fn func(context.Context, *otelsetup.Tracing) error,
) (err error) {
	catchBrokenPipes()
	if a.opts.AuditHash && a.opts.Audit == "" {
		return UsageError(errors.New("--audit-hash requires --audit FILE"), "")
	}
	if a.opts.Audit != "" {
		audited, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		log, failed := audit.Open(a.opts.Audit, audit.Options{Hash: a.opts.AuditHash, OnFailure: cancel})
		if failed != nil {
			return Fail(ExitFailed, failed, "check that you can append to the --audit file")
		}
		defer func() {
			if failed := log.Close(); failed != nil && !errors.Is(err, audit.ErrWrite) {
				err = errors.Join(err, Fail(ExitFailed, failed, "Workcell stopped at the first missing record"))
			}
		}()
		ctx = audit.NewContext(audited, log)
	}
	ctx, tel, err := a.startTracing(ctx, oneRun)
	if err != nil {
		return err
	}
	defer func() {
		tel.Close(ctx)
		if id := tel.TraceID(); oneRun && id != "" {
			a.Notice("trace: %s", id)
		}
	}()
	return fn(ctx, tel)
}

// hosting is like withHost, for callers with already started process-wide resources: the audit in ctx, and traces.
func (a *App) hosting(
	ctx context.Context, tel *otelsetup.Tracing, use Use, files map[string]string, oneRun bool,
	fn func(context.Context, *host) error,
) (err error) {
	hosts, err := a.OpenHostTools(ctx, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hosts.Close()) }()
	m, err := a.OpenManager(ctx, use)
	if err != nil {
		return err
	}
	defer m.Done()
	end := m.Close
	if a.opts.User != "" {
		// The runs close their own sandboxes, and the user's sandbox remains.
		ctx, end = session.WithUser(ctx, a.opts.User), m.Detach
	}
	defer func() { err = errors.Join(err, end(context.WithoutCancel(ctx))) }()
	ctx = m.Audited(ctx)
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
	h.approve, h.onTool = h.p.Approver(), h.p.Tool
	defer func() {
		h.p.Close()
		if h.traced != "" {
			a.Notice("to see the trace, run: workcell runs trace %s", h.traced)
		}
	}()
	return fn(ctx, h)
}
