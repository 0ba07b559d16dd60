package tools

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// pluginName is the name of the plugin in Genkit.
const pluginName = "workcell"

// Plugin connects a session manager to Genkit. Give it to genkit.Init:
//
//	g := genkit.Init(ctx, genkit.WithPlugins(&tools.Plugin{Manager: manager}))
//
// It registers the middleware "workcell/sandbox" and no tools that models call: a tool that is registered globally can
// be called by any model, offered or not. With GENKIT_ENV=dev the Dev UI has the tools, as workcell/sandbox_exec and so
// on, to be looked at and run by hand; they share a sandbox, which stays until sandbox_close, its idle timeout or
// Manager.Close.
//
// One plugin is for one genkit.Init. Use, Tools and what they return may be called concurrently.
type Plugin struct {
	// Manager opens the sandboxes. Required; it stays the caller's to close.
	Manager *session.Manager
	// Logger takes what operators should know and models should not: panics, internal failures, failed clean-up. Nil
	// discards.
	Logger *slog.Logger
	// HostTools are the tools of the host that code inside may call, as `host_tools:` of an agent allows. The registry
	// stays the caller's to close. Nil: there are none.
	HostTools *hosttools.Registry

	// Models is where coding agents of mode executor ask their models; the providers in it are named as in Genkit, the
	// part of a model's name before the slash. Nil: there is no mode executor.
	Models *model.Proxy
	// ExecutorImages are the images of coding agents' sandboxes, by command, where the file names none and it is not to be
	// workcell/COMMAND:VERSION.
	ExecutorImages map[string]string

	// ApprovalInterrupts has a call that needs an approval interrupt the sandbox_run or sandbox_exec whose code makes it,
	// where nobody else is asked (hosttools.WithApprover). The command waits inside. The interrupt has the metadata
	// approval, exec_id, sandbox_id, tool and arguments; a restart with the metadata approval, as it was, and allow (bool)
	// decides, and waits on for the same command, up to its next approval: Genkit returns an interrupted response of a
	// restart together with an error. Generate calls must belong to one run (session.WithRun) of one process.
	ApprovalInterrupts bool

	initted  atomic.Bool
	once     sync.Once
	box      *toolbox
	registry atomic.Pointer[api.Registry] // of the Genkit that is being set up, until its prompts were checked
}

var (
	_ api.Plugin          = (*Plugin)(nil)
	_ ai.MiddlewarePlugin = (*Plugin)(nil)
)

// Name is the name of the plugin in Genkit. Of a plugin's methods it is the only one that genkit.Init calls after it
// has loaded its prompts; it panics when one of them asks for a sandbox that it would not get (see PromptFS).
func (p *Plugin) Name() string {
	p.checkLoaded()
	return pluginName
}

// Init checks the plugin. As Genkit's plugins do it panics when it is called a second time, and when it is set up
// wrongly: without a Manager.
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

// devTools returns the tools of both modes for the Dev UI, which lists and runs what is registered. They have a run of
// their own, whose sandbox is kept between calls.
func (p *Plugin) devTools() []api.Action {
	var list []api.Action
	run := session.Run{Namespace: record.NamespaceAgent, ID: session.NewRunID()}
	for _, mode := range []frontmatter.Mode{frontmatter.ModeCompute, frontmatter.ModeCode} {
		b := newBinding(p.toolbox(), Sandbox{Mode: mode, Snapshots: mode == frontmatter.ModeCode})
		b.fallback = run
		for _, t := range b.tools() {
			list = append(list, devTool{t})
		}
	}
	return list
}

// devTool is a tool of the Dev UI. It has another name than the one that models call: what is registered under that
// would be run in the place of the tools of every Generate call.
type devTool struct{ *tool }

// Name is the tool's name behind the plugin's.
func (t devTool) Name() string { return pluginName + "/" + t.tool.Name() }

func (t devTool) Desc() api.ActionDesc {
	desc := t.tool.Desc()
	desc.Name, desc.Key = t.Name(), api.KeyFromName(desc.Type, t.Name())
	return desc
}

// Register registers the tool.
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
	p.once.Do(func() {
		p.box = newToolbox(p.Manager, p.Logger)
		p.box.hosts, p.box.asks = p.HostTools, p.ApprovalInterrupts
		p.box.models, p.box.executorImages = p.Models, p.ExecutorImages
	})
	return p.box
}

// Use returns the middleware for ai.WithUse. An invalid Sandbox is an error of the Generate call.
func (p *Plugin) Use(s Sandbox) ai.Middleware {
	return middleware{s, p.toolbox()}
}

// Tools returns fresh tools for ai.WithTools, for those who do without the middleware. Nothing is opened yet.
//
// The tools see the sandboxes of the run that ctx, or the context of a call, belongs to (session.WithRun), and the one
// who began the run closes it with Manager.CloseScope. Without a run they have a scope of their own, which lives until
// sandbox_close, the idle timeout or Manager.Close. The middleware's guard against unknown tool names is missing here.
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

// pluginOf finds the plugin that g was set up with; nil when there is none.
func pluginOf(g *genkit.Genkit) *Plugin {
	p, _ := genkit.LookupPlugin(g, pluginName).(*Plugin)
	return p
}
