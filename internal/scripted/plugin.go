package scripted

import (
	"context"
	"sync"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/api"
)

// Provider is the name of the provider: the part of its models' names before the slash.
const Provider = "scripted"

// ModelName gives the name of the model that plays an agent's turns.
func ModelName(agent string) string { return Provider + "/" + agent }

// Plugin is the Genkit plugin that plays a script. It remembers which invocations were taken. Safe for concurrent use.
type Plugin struct {
	script *Script

	mu    sync.Mutex // guards taken
	taken map[*invocation]bool
}

var _ api.DynamicPlugin = (*Plugin)(nil)

// NewPlugin makes a plugin that has played nothing yet.
func NewPlugin(s *Script) *Plugin {
	return &Plugin{script: s, taken: map[*invocation]bool{}}
}

// Skip takes the first invocations of an agent as played, as many as it ran in an earlier process. Those with a
// condition are left: it chooses them again.
func (p *Plugin) Skip(agent string, runs int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, inv := range p.script.agents[agent] {
		if runs > 0 && inv.when == nil && !p.taken[inv] {
			p.taken[inv] = true
			runs--
		}
	}
}

// Name is the provider's name.
func (*Plugin) Name() string { return Provider }

// Init gives one model per agent of the script.
func (p *Plugin) Init(context.Context) []api.Action {
	var out []api.Action
	for _, agent := range p.script.Agents() {
		out = append(out, p.model(agent))
	}
	return out
}

// ListActions describes the models.
func (p *Plugin) ListActions(context.Context) []api.ActionDesc {
	var out []api.ActionDesc
	for _, agent := range p.script.Agents() {
		out = append(out, p.model(agent).Desc())
	}
	return out
}

// ResolveAction gives the model of an agent that the script does not have too: its answer is an error that says so.
func (p *Plugin) ResolveAction(t api.ActionType, id string) api.Action {
	if t != api.ActionTypeModel {
		return nil
	}
	return p.model(id)
}

func (p *Plugin) model(agent string) *ai.ModelAction {
	opts := &ai.ModelOptions{
		Label: "Recorded answers for " + agent + " (scripted, no model is asked)",
		Supports: &ai.ModelSupports{
			Multiturn:   true,
			SystemRole:  true,
			Tools:       true,
			ToolChoice:  true,
			Constrained: ai.ConstrainedSupportAll,
		},
	}
	return ai.NewModelAction(ModelName(agent), opts,
		func(ctx context.Context, req *ai.ModelRequest, _ any, cb ai.ModelStreamCallback) (*ai.ModelResponse, error) {
			return p.answer(ctx, agent, req, cb)
		})
}

type inputKey struct{}

// WithInput tells the model what the agent's input is, for expressions that use it. Without it, input is empty.
func WithInput(ctx context.Context, input map[string]any) context.Context {
	return context.WithValue(ctx, inputKey{}, input)
}
