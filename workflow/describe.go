package workflow

import (
	"slices"

	"github.com/workcell-dev/workcell/internal/expr"
)

// Agents returns the sorted names of the workflow's agents without duplicates.
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

// InputSchema returns a copy of the JSON Schema of the run's input. If the file has no schema and a step uses the
// input, the result allows every input. If no step uses the input, the result allows no properties.
func (wf *Workflow) InputSchema() map[string]any {
	if wf.input == nil {
		uses := wf.readsInput || slices.ContainsFunc(wf.all, func(s *step) bool {
			b, ok := s.body.(*agentBody)
			return ok && b.input == nil
		})
		return map[string]any{"type": "object", "additionalProperties": uses}
	}
	schema, _ := expr.Clone(wf.input.raw).(map[string]any) // a clone has the original's type
	return schema
}
