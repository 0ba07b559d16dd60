package scripted

import (
	"context"
	"sync"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/api"
)

// Provider is the name of the provider, which is the part of the models' names before the slash.
const Provider = "scripted"

// ModelName returns the name of the model for an agent's turns.
func ModelName(agent string) string { return Provider + "/" + agent }

// Plugin is the Genkit plugin for a script. It remembers the played invocations of each run, so that every
// run plays the script from the beginning. It is safe for concurrent use.
type Plugin struct {
	script *Script

	mu    sync.Mutex // guards taken
	taken map[taking]bool
}

// taking is an invocation played by a run.
type taking struct {
	run string
	inv *invocation
}

var _ api.DynamicPlugin = (*Plugin)(nil)

// NewPlugin returns a plugin in the initial state.
func NewPlugin(s *Script) *Plugin {
	return &Plugin{script: s, taken: map[taking]bool{}}
}

// Played marks the next invocation of an agent as played by an earlier process of the run. It skips invocations with a
// condition, because the condition selects them again.
func (p *Plugin) Played(run, agent string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, inv := range p.script.agents[agent] {
		if t := (taking{run, inv}); inv.when == nil && !p.taken[t] {
			p.taken[t] = true
			return
		}
	}
}

// Continues marks the invocation of a continued conversation as played. refs are the references of the
// conversation's tool calls. It returns false if they do not refer to an invocation.
func (p *Plugin) Continues(run, agent string, refs []string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, ref := range refs {
		at, ok := parseRef(ref)
		if invocations := p.script.agents[agent]; ok && at.invocation >= 0 && at.invocation < len(invocations) {
			p.taken[taking{run, invocations[at.invocation]}] = true
			return true
		}
	}
	return false
}

// Name returns the provider's name.
func (*Plugin) Name() string { return Provider }

// Init returns one model per agent of the script.
func (p *Plugin) Init(context.Context) []api.Action {
	var out []api.Action
	for _, agent := range p.script.Agents() {
		out = append(out, p.model(agent))
	}
	return out
}

// ListActions returns the descriptions of the models.
func (p *Plugin) ListActions(context.Context) []api.ActionDesc {
	var out []api.ActionDesc
	for _, agent := range p.script.Agents() {
		out = append(out, p.model(agent).Desc())
	}
	return out
}

// ResolveAction returns the model of an agent. If the script does not contain the agent, the model returns errors.
func (p *Plugin) ResolveAction(t api.ActionType, id string) api.Action {
	if t != api.ActionTypeModel {
		return nil
	}
	return p.model(id)
}

func (p *Plugin) model(agent string) *ai.ModelAction {
	opts := &ai.ModelOptions{
		Label: "Recorded answers for " + agent + " (scripted, without a model)",
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

type (
	inputKey struct{} // holds the agent's input, a map[string]any
	runKey   struct{} // holds the id of the run, a string
)

// WithRun returns a context with a run and an agent's input, for use in expressions. Agents of the same run play the
// script's invocations in order. Without a run, an agent plays the first invocation whose condition is true.
func WithRun(ctx context.Context, run string, input map[string]any) context.Context {
	return context.WithValue(context.WithValue(ctx, inputKey{}, input), runKey{}, run)
}
