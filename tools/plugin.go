package tools

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/session"
)

// pluginName is the name of the plugin in Genkit.
const pluginName = "workcell"

// Plugin connects a session manager to Genkit. Give it to genkit.Init:
//
//	g := genkit.Init(ctx, genkit.WithPlugins(&tools.Plugin{Manager: manager}))
//
// It registers the middleware "workcell/sandbox" and no tools: a tool that is registered globally can be called by any
// model, offered or not. Use, Tools and what they return may be called concurrently.
type Plugin struct {
	// Manager opens the sandboxes. Required; it stays the caller's to close.
	Manager *session.Manager
	// Logger takes what operators should know and models should not: panics, internal failures, failed clean-up. Nil
	// discards.
	Logger *slog.Logger

	once     sync.Once
	box      *toolbox
	registry atomic.Pointer[api.Registry] // of the Genkit that is being set up, until its prompts were checked
}

var (
	_ api.Plugin          = (*Plugin)(nil)
	_ ai.MiddlewarePlugin = (*Plugin)(nil)
)

// Name is the name of the plugin in Genkit. Of a plugin's methods it is the only one that genkit.Init calls after it has loaded its prompts; it
// panics when one of them asks for a sandbox that it would not get (see PromptFS).
func (p *Plugin) Name() string {
	p.checkLoaded()
	return pluginName
}

// Init checks the plugin. It panics without a Manager, as Genkit's plugins do when they are set up wrongly.
func (p *Plugin) Init(context.Context) []api.Action {
	p.toolbox()
	return []api.Action{&registryProbe{plugin: p}}
}

// Middlewares returns the middleware for `use:` and the Dev UI.
func (p *Plugin) Middlewares(context.Context) ([]*ai.MiddlewareDesc, error) {
	return []*ai.MiddlewareDesc{
		ai.NewMiddleware("Tools that run code and commands in a container sandbox.", middleware{box: p.toolbox()}),
	}, nil
}

func (p *Plugin) toolbox() *toolbox {
	if p.Manager == nil {
		panic("tools: Plugin.Manager is nil; make one with session.NewManager")
	}
	p.once.Do(func() { p.box = newToolbox(p.Manager, p.Logger) })
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
	b, err := p.toolbox().bind(s)
	if err != nil {
		return nil, err
	}
	if run, ok := runOf(ctx); ok {
		b.fallback = run
	}
	b.chatIn(ctx)
	return b.offered(), nil
}

// pluginOf finds the plugin that g was set up with; nil when there is none.
func pluginOf(g *genkit.Genkit) *Plugin {
	p, _ := genkit.LookupPlugin(g, pluginName).(*Plugin)
	return p
}
