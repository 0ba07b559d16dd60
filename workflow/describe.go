package workflow

import (
	"fmt"
	"slices"

	"github.com/workcell-dev/workcell/internal/expr"
)

// StepInfo describes a step for people.
type StepInfo struct {
	ID       string     `json:"id"`
	Type     Type       `json:"type"`
	Agent    string     `json:"agent,omitempty"`
	Line     int        `json:"line"`
	LeadsTo  []string   `json:"leads_to,omitempty"` // steps named by next, a switch or on_error
	Branches [][]string `json:"branches,omitempty"` // ids of the steps of each branch, or of the one body of a for_each
}

// Describe lists the steps in the order of the file, nested ones after the step they are part of.
func (wf *Workflow) Describe() []StepInfo {
	out := make([]StepInfo, 0, len(wf.all))
	for _, s := range wf.all {
		info := StepInfo{ID: s.id, Type: s.typ, Line: s.node.Line}
		if b, ok := s.body.(*agentBody); ok {
			info.Agent = b.agent
		}
		to, _ := s.body.targets()
		for _, t := range append(to, s.next, s.onError) {
			if t.kind == targetStep && !slices.Contains(info.LeadsTo, t.id) {
				info.LeadsTo = append(info.LeadsTo, t.id)
			}
		}
		for _, in := range s.inner() {
			var ids []string
			for _, inside := range in.steps.steps {
				ids = append(ids, inside.id)
			}
			info.Branches = append(info.Branches, ids)
		}
		out = append(out, info)
	}
	return out
}

// Agents lists the agents that the workflow names, each once, sorted.
func (wf *Workflow) Agents() []string {
	var names []string
	for _, s := range wf.all {
		if b, ok := s.body.(*agentBody); ok {
			names = append(names, b.agent)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// InputSchema returns a copy of the JSON Schema of the run's input; one that allows every object when the file has none.
func (wf *Workflow) InputSchema() map[string]any {
	if wf.input == nil {
		return map[string]any{"type": "object", "additionalProperties": true}
	}
	schema, _ := expr.Clone(wf.input.raw).(map[string]any) // a clone has its original's type
	return schema
}

// ParseInput turns name=value pairs from a command line into an input: a value is text where the schema wants text, or
// has no type for it and the value is no JSON, else what it is as JSON.
func (wf *Workflow) ParseInput(pairs map[string]string) (map[string]any, error) {
	out := make(map[string]any, len(pairs))
	for name, text := range pairs {
		want, _ := wf.input.property(name)["type"].(string)
		if want == "string" {
			out[name] = text
			continue
		}
		v, err := expr.DecodeJSON([]byte(text))
		switch {
		case err == nil:
			out[name] = v
		case want == "":
			out[name] = text
		default:
			return nil, &Error{Code: CodeInput, Message: fmt.Sprintf("input %s: %q is not a JSON value of type %s", name, clip(text), want), Err: ErrInvalidInput}
		}
	}
	return out, nil
}
