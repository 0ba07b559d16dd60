package tools_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTypedAnswerWithTools asks each provider for a typed answer after a tool call. Gemini before 3 refuses requests that
// have tools and a response type.
func TestTypedAnswerWithTools(t *testing.T) {
	for _, v := range vendors() {
		t.Run(v.name, func(t *testing.T) {
			answer := v.text
			v.text = func(string) obj { return answer(`{"passed": true}`) }
			f := newFake(t, v, []toolCall{{"sandbox_exec", obj{"command": "true"}}})
			r := newRig(t, v.plugin(t, f.URL))
			a := r.agent("typed", "---\nmodel: "+v.model+"\nsandbox: {mode: code, runtime: bash}\noutput: {schema: {passed: boolean}}\n---\nTest it.")
			res, err := a.Run(context.Background(), nil, nil)
			if diff := cmp.Diff(any(map[string]any{"passed": true}), res.Output); err != nil || diff != "" {
				t.Fatalf("%v (-want +got):\n%s", err, diff)
			}
			if len(f.requests) != 2 {
				t.Fatalf("%d requests", len(f.requests))
			}
			for _, req := range f.requests {
				if config := sub(req["generationConfig"]); config["responseMimeType"] != nil || config["responseSchema"] != nil || config["responseJsonSchema"] != nil {
					t.Errorf("Gemini is asked for a type beside tools: %v", config)
				}
			}
		})
	}
}
