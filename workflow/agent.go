package workflow

import (
	"context"
	"crypto/sha256"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/expr"
	"github.com/workcell-dev/workcell/internal/yamlnode"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/tools"
)

// run runs the agent and returns the answer as the step's output.
func (b *agentBody) run(ctx context.Context, ex *execution) (result, error) {
	if ex.run.agents == nil {
		return result{}, &Error{Code: CodeAgent, Message: "agents are not available"}
	}
	input := ex.run.input // default: an agent without an input gets the run's input
	if b.input != nil {
		v, err := b.input.Eval(ctx, ex.scope.variables())
		if err != nil {
			return result{}, err
		}
		input, _ = v.(map[string]any)
	} else {
		input, _ = expr.Clone(input).(map[string]any)
	}
	ctx = context.WithValue(ctx, stepKey{}, ex.path)
	ctx, recorded := ex.record(session.WithSessionName(ctx, ex.session))
	out, err := guard(ctx, ex.run, ex.path, func(ctx context.Context) (AgentOutput, error) {
		out, err := ex.run.agents.RunAgent(ctx, b.agent, input)
		if err != nil { // even if it is an *Error, for example from a run the agent started
			message := err.Error()
			if who := "agent " + b.agent; !strings.HasPrefix(message, who) { // errors of package tools already contain the name
				message = who + ": " + message
			}
			err = &Error{Code: asError(err, CodeAgent).Code, Message: message, Err: err}
		}
		return out, err
	})
	ex.used = AgentOutput{CostUSD: out.CostUSD, Usage: out.Usage, Evidence: out.Evidence}
	if failed := recorded(); failed != nil {
		err = failed // ends the run
	}
	if err != nil {
		return result{}, err
	}
	if out.Output == nil {
		out.Output = out.Text
	}
	return result{output: out.Output, has: true, last: true}, nil
}

// sharedSandbox returns the request of the step's agent, and the name of the sandbox it shares. It returns "" for other
// steps, if the agent's file is unknown, or if the agent has no sandbox or a private one.
func (r *run) sharedSandbox(s *step) (session.Request, string) {
	b, ok := s.body.(*agentBody)
	if !ok {
		return session.Request{}, ""
	}
	file := r.file(b)
	name, shares := s.location.of(file)
	if !shares {
		return session.Request{}, ""
	}
	req, _ := tools.RequestOver(*file.Sandbox, session.Request{})
	return req, name
}

// file returns the file of a step's agent. If it is unknown, file returns nil.
func (r *run) file(b *agentBody) *frontmatter.Document {
	file := b.file
	if agents, ok := r.agents.(Agents); ok && file == nil {
		file, _ = agents.File(b.agent) // the workflow was loaded without files of agents
	}
	return file
}

// ForAgent returns a workflow with one step running an agent. The workflow's ID is the agent's name, which the
// AgentRunner must know. The run has the agent's input and outputs.
func ForAgent(doc *frontmatter.Document) *Workflow {
	name := strings.ToValidUTF8(strings.TrimSuffix(filepath.Base(doc.File), ".prompt"), "_")
	body := &agentBody{agent: name, file: doc}
	s := &step{id: "agent", typ: TypeAgent, retry: retry{attempts: 1}, body: body,
		location: named(record.DefaultName)}
	s.seq = &sequence{steps: []*step{s}, index: map[string]int{s.id: 0}, scope: "the workflow"}
	return &Workflow{
		ID: name, Description: doc.Meta.Description, Path: doc.File, Hash: digest([]byte(doc.Text()), sha256.Size),
		MaxSteps: defaultMaxSteps, Timeout: maxTimeout,
		src: yamlnode.NewDecoder(doc.File, doc.Text(), 1).Source, outputs: doc.Outputs(), agent: doc,
		steps: s.seq, all: s.seq.steps,
	}
}

// Agent returns the agent of a workflow from ForAgent. For other workflows, it returns nil.
func (wf *Workflow) Agent() *frontmatter.Document { return wf.agent }

// Agents runs agents by name, for example the agents from tools.LoadAgents. It is safe for concurrent use if the map is
// not changed.
type Agents map[string]*tools.Agent

var _ AgentRunner = Agents(nil)

// File returns the file of an agent. Use it as LoadOptions.Agents.
func (a Agents) File(name string) (*frontmatter.Document, error) {
	if a[name] == nil {
		return nil, fmt.Errorf("unknown agent %q, available: %s", clip(name), strings.Join(sortedKeys(a), ", "))
	}
	return a[name].Document(), nil
}

// RunAgent runs an agent with the model from the file.
func (a Agents) RunAgent(ctx context.Context, name string, input map[string]any) (AgentOutput, error) {
	if _, err := a.File(name); err != nil {
		return AgentOutput{}, err
	}
	res, err := a[name].Run(ctx, input, nil)
	return OutputOf(res), err
}

// OutputOf returns the result of an agent as an AgentOutput, even if the agent failed.
func OutputOf(res tools.AgentResult) AgentOutput {
	out := AgentOutput{Text: res.Text, Output: res.Output, CostUSD: res.Executor.Cost(), Evidence: res.Evidence}
	if res.Model != "" { // otherwise it failed before it called a model
		out.Usage = &Usage{
			Model: res.Model, In: int64(res.InputTokens), Out: int64(res.OutputTokens), CacheRead: int64(res.CachedTokens),
			Turns: res.Turns, Calls: res.ToolCalls, Estimated: res.Executor != nil && res.Executor.Metered.Estimated > 0,
		}
	}
	return out
}
