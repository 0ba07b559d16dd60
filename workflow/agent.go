package workflow

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/yamlnode"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/tools"
)

// run lets the agent work and keeps its answer.
func (b *agentBody) run(ctx context.Context, ex *execution) (result, error) {
	if ex.run.agents == nil {
		return result{}, &Error{Code: CodeAgent, Message: "agents are not available"}
	}
	input := ex.run.input // without an input of its own an agent gets the run's
	if b.input != nil {
		v, err := b.input.Eval(ctx, ex.scope.variables())
		if err != nil {
			return result{}, err
		}
		input, _ = v.(map[string]any)
	} else {
		input, _ = expr.Clone(input).(map[string]any)
	}
	ctx, recorded := ex.record(session.WithSessionName(ctx, ex.session))
	out, err := guard(ctx, ex.run, ex.path, func(ctx context.Context) (AgentOutput, error) {
		out, err := ex.run.agents.RunAgent(ctx, b.agent, input)
		if err != nil { // also when it is an *Error, of a run that the agent made
			message := err.Error()
			if who := "agent " + b.agent; !strings.HasPrefix(message, who) { // those of package tools say it themselves
				message = who + ": " + message
			}
			err = &Error{Code: asError(err, CodeAgent).Code, Message: message, Err: err}
		}
		return out, err
	})
	ex.evidence = out.Evidence
	if failed := recorded(); failed != nil {
		err = failed // which ends the run
	}
	if err != nil {
		return result{cost: out.CostUSD}, err
	}
	if out.Output == nil {
		out.Output = out.Text
	}
	return result{output: out.Output, has: true, last: true, cost: out.CostUSD}, nil
}

// ForAgent returns a workflow with one step that runs an agent. Its ID is the agent's name, by which the AgentRunner
// must know the agent. The run has the agent's input and outputs.
func ForAgent(doc *frontmatter.Document) *Workflow {
	name := strings.ToValidUTF8(strings.TrimSuffix(filepath.Base(doc.File), ".prompt"), "_")
	sum := sha256.Sum256([]byte(doc.Text()))
	body := &agentBody{agent: name, file: doc}
	s := &step{id: "agent", typ: TypeAgent, retry: retry{attempts: 1}, body: body}
	s.seq = &sequence{steps: []*step{s}, index: map[string]int{s.id: 0}, scope: "the workflow"}
	return &Workflow{
		ID: name, Description: doc.Meta.Description, Path: doc.File, Hash: hex.EncodeToString(sum[:]),
		MaxSteps: defaultMaxSteps, Timeout: maxTimeout,
		src: yamlnode.NewDecoder(doc.File, doc.Text(), 1).Source, outputs: doc.Outputs(), agent: doc,
		steps: s.seq, all: s.seq.steps,
	}
}

// Agent returns the agent of a workflow that ForAgent made, and nil for other workflows.
func (wf *Workflow) Agent() *frontmatter.Document { return wf.agent }

// Agents runs agents by name, such as those that tools.LoadAgents returns. It is safe for concurrent use as long as
// nobody changes it.
type Agents map[string]*tools.Agent

var (
	_ AgentRunner      = Agents(nil)
	_ SandboxDescriber = Agents(nil)
)

// File returns the file of an agent, for LoadOptions.Agents.
func (a Agents) File(name string) (*frontmatter.Document, error) {
	if a[name] == nil {
		return nil, fmt.Errorf("unknown agent %q, available: %s", clip(name), strings.Join(sortedKeys(a), ", "))
	}
	return a[name].Document(), nil
}

// RunAgent runs an agent with the model that its file names.
func (a Agents) RunAgent(ctx context.Context, name string, input map[string]any) (AgentOutput, error) {
	if _, err := a.File(name); err != nil {
		return AgentOutput{}, err
	}
	res, err := a[name].Run(ctx, input, nil)
	out := AgentOutput{Text: res.Text, Output: res.Output, CostUSD: res.Executor.Cost(), Evidence: res.Evidence}
	return out, err
}

// AgentSandbox returns what an agent asks of the sandbox that it shares with its run.
func (a Agents) AgentSandbox(name string) (session.Request, bool) {
	if a[name] == nil {
		return session.Request{}, false
	}
	return a[name].SharedSandbox()
}
