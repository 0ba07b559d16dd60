package tools

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/executor/drivers"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/interrupt"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// pluginName is the name of the plugin in Genkit.
const pluginName = "workcell"

// Plugin connects a session manager to Genkit. Pass it to genkit.Init:
//
//	g := genkit.Init(ctx, genkit.WithPlugins(&tools.Plugin{Manager: manager}))
//
// It registers the middleware "workcell/sandbox". It registers no tools under the names that models call, because any
// model can call a registered tool, even if the tool was not offered. With GENKIT_ENV=dev, it registers tools for the
// Dev UI under names such as workcell/sandbox_exec, so a developer can inspect and run them. The Dev UI tools share a
// sandbox, which exists until sandbox_close, the idle timeout, or Manager.Close.
//
// Each genkit.Init needs a separate Plugin. Use, Tools, and the values they return are safe for concurrent use.
type Plugin struct {
	// Manager opens the sandboxes. Required. The caller must close it.
	Manager *session.Manager
	// Logger logs details that operators need but models must not see: panics, internal errors, and failed cleanups. If
	// nil, they are discarded.
	Logger *slog.Logger
	// HostTools is the registry of the host tools that code in sandboxes may call. An agent's `host_tools:` selects from
	// it. The caller must close it. If nil, code has no host tools. HostTools may be set after genkit.Init, whose result
	// GenkitSource requires, but it must be set before the first call.
	HostTools *hosttools.Registry

	// Models is the model proxy for coding agents in mode executor. It uses Genkit's provider names, which are the part
	// of a model's name before the slash. If nil, mode executor is not available.
	Models *model.Proxy
	// ExecutorImages are the sandbox images of coding agents, by command. An image in the agent's file takes
	// precedence. Without an entry, the image is workcell/COMMAND:VERSION.
	ExecutorImages map[string]string

	// ApprovalInterrupts means that a host tool call needing approval interrupts the sandbox_run or sandbox_exec call
	// whose code made it. It has no effect if ctx has an approver (hosttools.WithApprover). The command waits in the
	// sandbox.
	//
	// The interrupt has the metadata approval, exec_id, sandbox_id, tool, and arguments. The metadata of a restart must
	// have the same approval value, and allow (bool). The restart delivers the decision and waits for the same command
	// until it needs its next approval. If a restart is interrupted again, Genkit returns the interrupted response
	// together with an error. All Generate calls must belong to the same run (session.WithRun) in the same process.
	ApprovalInterrupts bool

	initted  atomic.Bool
	once     sync.Once
	box      *toolbox
	registry atomic.Pointer[api.Registry] // of the current genkit.Init, until the prompts are checked
}

var (
	_ api.Plugin          = (*Plugin)(nil)
	_ ai.MiddlewarePlugin = (*Plugin)(nil)
)

// Name returns the plugin's name in Genkit. genkit.Init calls no other method of a plugin after it has loaded the
// prompts. Therefore, Name panics if one of the prompts configures a sandbox it would not get (see PromptFS).
func (p *Plugin) Name() string {
	p.checkLoaded()
	return pluginName
}

// Init checks the plugin. Like Genkit's plugins, it panics if it is called twice or if the configuration is invalid,
// for example without a Manager.
func (p *Plugin) Init(context.Context) []api.Action {
	p.toolbox()
	if !p.initted.CompareAndSwap(false, true) {
		panic("tools: plugin already initialized; create one for each genkit.Init")
	}
	actions := []api.Action{&registryProbe{plugin: p}, newPlaceholder()}
	if api.CurrentEnvironment() == api.EnvironmentDev {
		actions = append(actions, p.devTools()...)
	}
	return actions
}

// devTools returns the tools of both modes for the Dev UI, which lists and runs registered tools. They use a separate
// run, whose sandbox is kept between calls.
func (p *Plugin) devTools() []api.Action {
	run := session.Run{Namespace: record.NamespaceAgent, ID: session.NewRunID()}
	calls, _ := p.Calls(run, Sandbox{Snapshots: true}, nil) // the configuration is valid
	list := make([]api.Action, len(calls.tools))
	for i, t := range calls.tools {
		list[i] = devTool{t}
	}
	return list
}

// devTool is a tool for the Dev UI. Its name differs from the tool name for models, because Genkit would run a
// registered tool of the same name instead of the tools of a Generate call.
type devTool struct{ *tool }

// Name returns the tool's name with the plugin's name as prefix.
func (t devTool) Name() string { return pluginName + "/" + t.tool.Name() }

func (t devTool) Desc() api.ActionDesc {
	desc := t.tool.Desc()
	desc.Name, desc.Key = t.Name(), api.KeyFromName(desc.Type, t.Name())
	return desc
}

func (t devTool) Register(r api.Registry) { r.RegisterAction(t.Desc().Key, t) }

// Middlewares returns the middleware for `use:` and the Dev UI.
func (p *Plugin) Middlewares(context.Context) ([]*ai.MiddlewareDesc, error) {
	return []*ai.MiddlewareDesc{
		ai.NewMiddleware("Tools that run code and commands in a container sandbox.", middleware{box: p.toolbox()}),
	}, nil
}

func (p *Plugin) toolbox() *toolbox {
	if p.Manager == nil {
		panic("tools: Plugin.Manager is nil; create one with session.NewManager")
	}
	p.once.Do(func() { p.box = newToolbox(p) })
	return p.box
}

// Use returns the middleware for ai.WithUse. If s is invalid, the Generate call returns the error. Pass it before other
// middleware, because it does not see requests made by middleware before it, for example by Fallback. In mode executor,
// pass it last. Media in messages must be data: URLs or, for Gemini, YouTube or Files API URLs.
func (p *Plugin) Use(s Sandbox) ai.Middleware {
	return middleware{s, p.toolbox()}
}

// Tools returns new tools for ai.WithTools, for programs without the middleware. It opens no sandbox. The tools lack
// the middleware's handling of unknown tool names.
//
// The tools use the sandboxes of the run in ctx, or in the context of a call (session.WithRun). The caller closes its
// own run with Manager.CloseScope. Without a run, the tools have a private scope, which exists until sandbox_close, the
// idle timeout, or Manager.Close.
func (p *Plugin) Tools(ctx context.Context, s Sandbox) ([]ai.Tool, error) {
	b, err := p.toolbox().bind(ctx, s)
	if err != nil {
		return nil, err
	}
	if run, ok := runOf(ctx); ok {
		b.fallback = run
	}
	if err := b.chatIn(ctx); err != nil {
		return nil, err
	}
	return b.offered(), nil
}

// pluginOf returns g's Workcell plugin, or nil if g has none.
func pluginOf(g *genkit.Genkit) *Plugin {
	p, _ := genkit.LookupPlugin(g, pluginName).(*Plugin)
	return p
}

// toolbox is the state all tools of one plugin share.
type toolbox struct {
	plugin   *Plugin
	manager  *session.Manager
	log      *slog.Logger
	registry atomic.Pointer[api.Registry] // of the Genkit instance with the plugin; nil without Genkit
	versions drivers.Versions             // cached versions of coding agents

	rounds interrupt.Rounds[*interrupt.Job[any]] // interrupted calls, waiting for their restart

	users users    // of the interpreters of users' sandboxes
	texts sync.Map // registered partials, by name
	turns sync.Map // *turnHolder by turn

	mu     sync.Mutex // guards cached; never held while a tool runs
	cached map[string][]byte
}

func newToolbox(p *Plugin) *toolbox {
	log := cmp.Or(p.Logger, slog.New(slog.DiscardHandler))
	return &toolbox{plugin: p, manager: p.Manager, log: log, cached: map[string][]byte{},
		users: users{count: map[string]int{}}}
}

// schemas returns copies of a tool's inferred schemas. It caches the schemas, because inference is the most expensive
// part of creating a tool. It copies them, because model plugins may modify them.
func (t *toolbox) schemas(name string, infer func() (in, out map[string]any)) (in, out map[string]any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.cached[name]; !ok {
		in, out := infer()
		t.cached[name], _ = json.Marshal([]any{in, out}) // plain data, so the error is always nil
	}
	_ = json.Unmarshal(t.cached[name], &[]any{&in, &out}) // decodes its own encoding, so the error is always nil
	return in, out
}
