//go:build !no_models

package models

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/llmtest"
)

// TestExactText verifies that models read tool results and their own calls without HTML escapes, and text that
// looks like such an escape is unchanged.
func TestExactText(t *testing.T) {
	mock := llmtest.New(func(int, llmtest.Request) llmtest.Answer { return llmtest.Answer{Text: "done"} })
	server := httptest.NewServer(mock)
	t.Cleanup(server.Close)
	env := map[string]string{"OLLAMA_HOST": server.URL}
	for _, r := range table(environ.Of(nil)) {
		if len(r.needs) == 1 {
			env[r.needs[0][0]], env[r.baseEnv[0]] = "k", server.URL+map[bool]string{true: "/v1/"}[strings.HasPrefix(r.scheme, "Bearer")]
		}
	}
	for k, v := range env {
		t.Setenv(k, v)
	}
	const code = `if a < b && c > d { "\u003c \\" }`
	data := map[string]any{"text": code}
	for name := range table(environ.Of(nil)) {
		if name == "vertexai" { // same as googleai with other credentials
			continue
		}
		plugins, err := Plugins(os.LookupEnv, []Use{{name + "/m", ""}})
		checktest.Must(t, err)
		g := genkit.Init(t.Context(), genkit.WithPlugins(plugins...))
		before := len(mock.Requests())
		_, err = genkit.Generate(t.Context(), g, ai.WithModelName(name+"/m"), ai.WithMessages(
			ai.NewUserTextMessage(code),
			ai.NewMessage(ai.RoleModel, nil, ai.NewToolRequestPart(&ai.ToolRequest{Name: "x", Ref: "1", Input: data})),
			ai.NewMessage(ai.RoleTool, nil, ai.NewToolResponsePart(&ai.ToolResponse{Name: "x", Ref: "1", Output: data})),
		))
		requests := mock.Requests()
		if err != nil || len(requests) != before+1 {
			t.Errorf("%s: %d requests: %v", name, len(requests)-before, err)
			continue
		}
		if n := count(requests[before].Body, code); n != 3 {
			body, _ := json.Marshal(requests[before].Body)
			t.Errorf("%s: %d texts are exact, want 3: %s", name, n, body)
		}
	}
}

// count returns the number of strings in a request that equal text, or are JSON that contains it.
func count(v any, text string) (n int) {
	switch v := v.(type) {
	case string:
		var inner any
		if v == text {
			return 1
		}
		if json.Unmarshal([]byte(v), &inner) == nil && strings.Contains(v, "a < b && c > d") {
			return count(inner, text)
		}
	case []any:
		for _, item := range v {
			n += count(item, text)
		}
	case map[string]any:
		for _, item := range v {
			n += count(item, text)
		}
	}
	return n
}
