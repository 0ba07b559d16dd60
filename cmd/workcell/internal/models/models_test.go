package models

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/hint"
)

// TestModelPluginsAreBuiltForWhatIsNeeded verifies that a provider without agents has no plugin, and a provider of
// two agents has one plugin.
func TestModelPluginsAreBuiltForWhatIsNeeded(t *testing.T) {
	t.Parallel()
	e := environ.Of(map[string]string{"GEMINI_API_KEY": "k", "ANTHROPIC_AUTH_TOKEN": "k", "OPENAI_API_KEY": "k"})
	plugins, err := Plugins(e, []Use{
		{"googleai/gemini-2.5-flash", "a"}, {"anthropic/claude-sonnet-4-5", "b"}, {"googleai/gemini-2.5-pro", "c"},
		{"ollama/qwen3", "d"},
	})
	checktest.Must(t, err)
	var names []string
	for _, p := range plugins {
		names = append(names, p.Name())
	}
	if diff := cmp.Diff([]string{"anthropic", "googleai", "ollama"}, names); diff != "" {
		t.Errorf("plugins (-want +got):\n%s", diff)
	}
}

// TestEveryProviderCarriesItsName verifies that the names of providers and plugins do not change, and every plugin
// has a row.
func TestEveryProviderCarriesItsName(t *testing.T) {
	t.Parallel()
	plugins, rows := genkitPlugins(environ.Of(nil)), table(environ.Of(nil))
	for name, p := range plugins {
		if got := p.Name(); got != name {
			t.Errorf("provider %s builds the plugin of %s", name, got)
		}
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(rows)), slices.Sorted(maps.Keys(plugins))); diff != "" {
		t.Errorf("rows and plugins differ:\n%s", diff)
	}
}

// TestOllamaError verifies that the hint for an unreachable server contains no password.
func TestOllamaError(t *testing.T) {
	t.Parallel()
	e := environ.Of(map[string]string{"OLLAMA_HOST": "http://u:sesame@127.0.0.1:1"})
	h := hint.Of(OllamaError(t.Context(), e, errors.New("no")))
	if h == nil || !strings.Contains(h.Hint, "127.0.0.1:1") || strings.Contains(h.Hint, "sesame") {
		t.Errorf("%+v", h)
	}
}

// TestUpstream verifies that the proxy uses the same variables as the plugins.
func TestUpstream(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		model, base, header, key string
		env                      map[string]string
	}{
		{"anthropic/x", "https://api.anthropic.com", "X-Api-Key", "a", map[string]string{"ANTHROPIC_API_KEY": "a", "ANTHROPIC_AUTH_TOKEN": "b"}},
		{"anthropic/x", "http://gate:8080", "Authorization", "Bearer b", map[string]string{"ANTHROPIC_AUTH_TOKEN": "b", "ANTHROPIC_BASE_URL": "http://gate:8080"}},
		{"googleai/x", "https://generativelanguage.googleapis.com", "X-Goog-Api-Key", "g", map[string]string{"GOOGLE_API_KEY": "g"}},
		{"openai/x", "http://vllm:8000/v1/", "Authorization", "Bearer o", map[string]string{"OPENAI_API_KEY": "o", "OPENAI_BASE_URL": "http://vllm:8000/v1/"}},
		{"kimi/x", "https://api.moonshot.ai/v1", "Authorization", "Bearer m", map[string]string{"MOONSHOT_API_KEY": "m"}},
		{"ollama/x", "http://gpu:11434/v1", "Authorization", "", map[string]string{"OLLAMA_HOST": "gpu"}},
	} {
		p, err := Upstream(environ.Of(tt.env), Use{tt.model, "a"})
		if err != nil {
			t.Fatalf("%s: %v", tt.model, err)
		}
		h := http.Header{}
		if p.Auth != nil {
			checktest.Must(t, p.Auth(h))
		}
		if p.Base.String() != tt.base || h.Get(tt.header) != tt.key {
			t.Errorf("%s: %s, %v", tt.model, p.Base, h)
		}
	}
	for model, want := range map[string]string{"vertexai/x": "cannot authenticate", "xai/x": "requires XAI_API_KEY", "openai/x": "not an http or https URL"} {
		_, err := Upstream(environ.Of(map[string]string{"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "ftp:x"}), Use{model, "a"})
		wantModel(t, err, want)
	}
}

func TestMissingKeyNamesTheVariables(t *testing.T) {
	t.Parallel()
	for model, want := range map[string]string{
		"googleai/x":   "GEMINI_API_KEY or GOOGLE_API_KEY",
		"vertexai/x":   "GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION or GOOGLE_CLOUD_REGION",
		"anthropic/x":  "ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN",
		"openai/x":     "OPENAI_API_KEY",
		"deepseek/x":   "DEEPSEEK_API_KEY",
		"xai/x":        "XAI_API_KEY",
		"kimi/x":       "KIMI_API_KEY or MOONSHOT_API_KEY",
		"zai/x":        "ZAI_API_KEY",
		"dashscope/x":  "DASHSCOPE_API_KEY",
		"openrouter/x": "OPENROUTER_API_KEY",
	} {
		_, err := Plugins(environ.Of(map[string]string{"GOOGLE_API_KEY_": ""}), []Use{{model, "coder"}})
		wantModel(t, err, `model "`+model+`" of agent coder requires `+want)
	}
	if _, err := Plugins(environ.Of(nil), []Use{{"ollama/x", "coder"}}); err != nil {
		t.Errorf("ollama needs no key: %v", err)
	}
}

func TestUnknownProviderListsTheKnownOnes(t *testing.T) {
	t.Parallel()
	_, err := Plugins(environ.Of(nil), []Use{{"acme/x", ""}})
	wantModel(t, err, `unknown model provider "acme" in model "acme/x" (--model)`)
	if h := hint.Of(err); h == nil || !strings.Contains(h.Hint, "anthropic, dashscope, deepseek, googleai") {
		t.Errorf("hint = %+v", h)
	}
	_, err = Plugins(environ.Of(nil), []Use{{"gemini", "a"}})
	wantModel(t, err, "must have the form provider/name")
}

func TestOllamaAddress(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                         "http://127.0.0.1:11434",
		"gpu":                      "http://gpu:11434",
		"gpu:1234":                 "http://gpu:1234",
		"0.0.0.0":                  "http://127.0.0.1:11434",
		":8080":                    "http://127.0.0.1:8080",
		"[::1]:8080":               "http://[::1]:8080",
		"http://gpu:80/":           "http://gpu:80",
		"https://ollama.example/x": "https://ollama.example/x",
		"https://ollama.example":   "https://ollama.example",
	} {
		if got := ollamaAddress(in); got != want {
			t.Errorf("ollamaAddress(%q) = %q, want %q", in, got, want)
		}
	}
}

func wantModel(t *testing.T, err error, text string) {
	t.Helper()
	if h := hint.Of(err); h == nil || h.Kind != hint.Model || !strings.Contains(err.Error(), text) {
		t.Errorf("error = %v, want %q", err, text)
	}
}
