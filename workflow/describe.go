package workflow

import (
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

// InputSchema returns a copy of the JSON Schema of the run's input. If the file has none, the schema allows every
// input, or none if no step uses the input.
func (wf *Workflow) InputSchema() map[string]any {
	if wf.input == nil {
		uses := wf.readsInput || slices.ContainsFunc(wf.all, func(s *step) bool {
			b, ok := s.body.(*agentBody)
			return ok && b.input == nil
		})
		return map[string]any{"type": "object", "additionalProperties": uses}
	}
	schema, _ := expr.Clone(wf.input.raw).(map[string]any) // a clone has its original's type
	return schema
}
