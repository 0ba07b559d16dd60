package workflow

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// Agents runs agents by name, such as those that tools.LoadAgents returns. It is safe for concurrent use as long as nobody
// changes it.
type Agents map[string]*tools.Agent

var (
	_ AgentRunner      = Agents(nil)
	_ SandboxDescriber = Agents(nil)
)

// File returns the file of an agent, for LoadOptions.Agents.
func (a Agents) File(name string) (*frontmatter.Document, error) {
	if a[name] == nil {
		return nil, fmt.Errorf("there is no agent %q, known are: %s", clip(name), strings.Join(slices.Sorted(maps.Keys(a)), ", "))
	}
	return a[name].Document(), nil
}

// RunAgent runs an agent with the model that its file names.
func (a Agents) RunAgent(ctx context.Context, name string, input map[string]any) (AgentOutput, error) {
	if _, err := a.File(name); err != nil {
		return AgentOutput{}, err
	}
	res, err := a[name].Run(ctx, input, nil)
	if err != nil {
		return AgentOutput{}, err
	}
	return AgentOutput{Text: res.Text, Output: res.Output}, nil
}

// AgentSandbox returns what an agent asks of the sandbox that it shares with its run.
func (a Agents) AgentSandbox(name string) (session.Request, bool) {
	if a[name] == nil {
		return session.Request{}, false
	}
	return a[name].SharedSandbox()
}
