package tools_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/firebase/genkit/go/ai"
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/genkit"
	"github.com/firebase/genkit/go/plugins/anthropic"
	"github.com/firebase/genkit/go/plugins/compat_oai"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/llmtest"
)

// babbler is a provider whose model calls a tool with invalid JSON arguments, once per element of broken, and then says
// done.
type babbler struct {
	*llmtest.Server
	broken []string
	before int // number of earlier requests, which do not count
	plugin api.Plugin
	model  string
}

func newBabbler(t *testing.T, protocol string, broken ...string) *babbler {
	b := &babbler{broken: broken, model: "mine/model"}
	b.Server = llmtest.New(func(n int, _ llmtest.Request) llmtest.Answer {
		if n -= b.before; n < len(b.broken) && b.broken[n] != "" {
			return llmtest.Answer{Calls: []llmtest.Call{{Name: "sandbox_exec", Input: b.broken[n]}}}
		}
		return llmtest.Answer{Text: "done"}
	})
	server := httptest.NewServer(b)
	t.Cleanup(server.Close)
	b.plugin = &compat_oai.OpenAICompatible{Provider: "mine", APIKey: "key", BaseURL: server.URL}
	if protocol == "anthropic" {
		b.plugin, b.model = &anthropic.Anthropic{APIKey: "key", BaseURL: server.URL}, "anthropic/claude-sonnet-4-5"
	}
	return b
}

// again restarts the script with other arguments.
func (b *babbler) again(broken ...string) { b.before, b.broken = len(b.Requests()), broken }

// requests returns the number of requests since the restart.
func (b *babbler) requests() int { return len(b.Requests()) - b.before }

// TestUnreadableArguments verifies that a model gets an error and tries again if a Genkit plugin cannot parse the
// arguments as a JSON object. Without the middleware, this error ends the run.
func TestUnreadableArguments(t *testing.T) {
	streamed := ai.WithStreaming(func(context.Context, *ai.ModelResponseChunk) error { return nil })
	for name, tt := range map[string]struct {
		protocol string
		opts     []ai.GenerateOption
	}{
		"openai":              {"openai", nil},
		"openai, streamed":    {"openai", []ai.GenerateOption{streamed}},
		"anthropic, streamed": {"anthropic", []ai.GenerateOption{streamed}},
	} {
		t.Run(name, func(t *testing.T) {
			broken := []string{`{"command": "echo "hi""}`, `{"command": "ls`}
			want := []string{"invalid character 'h' after object key:value pair", "unexpected end of JSON input"}
			if tt.protocol == "openai" {
				broken, want = append(broken, `["ls"]`), append(want, "they are of type array")
			}
			b := newBabbler(t, tt.protocol, broken...)
			r := newRig(t, b.plugin)
			generate := func(opts ...ai.GenerateOption) (*ai.ModelResponse, error) {
				opts = append(opts, tt.opts...)
				return genkit.Generate(context.Background(), r.g, append(opts, ai.WithModelName(b.model), ai.WithPrompt("go"), ai.WithMaxTurns(20))...)
			}
			resp, err := generate(ai.WithUse(r.plugin.Use(codeMode())))
			if err != nil || resp.Text() != "done" {
				t.Fatalf("%v: %v", resp, err)
			}
			told := b.Requests()[len(broken)].Results()
			for i := range broken {
				if !strings.Contains(told[i], want[i]) || !strings.Contains(told[i], "none of the calls was made") || !strings.Contains(told[i], "invalid_argument") {
					t.Errorf("%s: the model got %s, want %s", broken[i], told[i], want[i])
				}
			}
			if r.engine.created() != 0 {
				t.Error("something was run")
			}
			// Without the middleware, the same error ends the run.
			b.again(broken...)
			shared, err := r.plugin.Tools(context.Background(), codeMode())
			checktest.Must(t, err)
			if _, err := generate(ai.WithTools(shared[0])); err == nil || b.requests() != 1 {
				t.Errorf("Genkit alone makes %d requests: %v", b.requests(), err)
			}
			// A model that repeats the error ends the run with the plugin's own error.
			b.again(strings.Split(strings.Repeat("{,", 30), ",")...)
			_, err = generate(ai.WithUse(r.plugin.Use(codeMode())))
			if err == nil || !strings.Contains(err.Error(), "unexpected end of JSON input") || b.requests() != 6 {
				t.Errorf("after %d requests: %v", b.requests(), err)
			}
		})
	}
}

// TestOtherModelErrors verifies that other provider errors end the run unchanged.
func TestOtherModelErrors(t *testing.T) {
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, "<html>a proxy's page</html>")
	}))
	t.Cleanup(page.Close)
	r := newRig(t, &compat_oai.OpenAICompatible{Provider: "mine", APIKey: "key", BaseURL: page.URL})
	_, err := genkit.Generate(context.Background(), r.g, ai.WithModelName("mine/model"), ai.WithPrompt("go"), ai.WithUse(r.plugin.Use(codeMode())))
	if err == nil || strings.Contains(err.Error(), "tool") {
		t.Errorf("a page instead of an answer: %v", err)
	}
}
