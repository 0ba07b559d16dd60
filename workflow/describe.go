package workflow

import (
	"fmt"
	"slices"

	"github.com/workcell-dev/workcell/internal/expr"
)

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
