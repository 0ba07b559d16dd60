package tools

import (
	"slices"

	"github.com/firebase/genkit/go/ai"
)

// withoutNarration gives the message without its text when it also calls tools and the final answer is to have a form;
// nil when there is nothing to take away. Genkit checks every answer against the output schema, also one that only
// calls tools: "I run the tests first" beside a call would end the run.
func withoutNarration(req *ai.ModelRequest, m *ai.Message) *ai.Message {
	if req.Output == nil || req.Output.Format == "" || req.Output.Format == ai.OutputFormatText {
		return nil
	}
	calls := slices.ContainsFunc(m.Content, func(p *ai.Part) bool { return p != nil && p.IsToolRequest() })
	text := func(p *ai.Part) bool { return p == nil || p.IsText() }
	if !calls || !slices.ContainsFunc(m.Content, text) {
		return nil
	}
	out := *m
	out.Content = slices.DeleteFunc(slices.Clone(m.Content), text)
	return &out
}
