package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// withEnv is an environment that has just these variables.
func withEnv(vars map[string]string) env {
	return func(name string) (string, bool) {
		v, ok := vars[name]
		return v, ok
	}
}

func TestModelPluginsAreBuiltForWhatIsNeeded(t *testing.T) {
	t.Parallel()
	e := withEnv(map[string]string{"GEMINI_API_KEY": "k", "ANTHROPIC_AUTH_TOKEN": "k", "OPENAI_API_KEY": "k"})
	plugins, err := modelPlugins(e, []modelUse{
		{"googleai/gemini-2.5-flash", "a"}, {"anthropic/claude-sonnet-4-5", "b"}, {"googleai/gemini-2.5-pro", "c"},
		{"ollama/qwen3", "d"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range plugins {
		names = append(names, p.Name())
	}
	if diff := cmp.Diff([]string{"anthropic", "googleai", "ollama"}, names); diff != "" {
		t.Errorf("plugins (-want +got):\n%s", diff)
	}
}

// TestEveryProviderCarriesItsName builds each plugin, so that a provider's name and its plugin's stay the same.
func TestEveryProviderCarriesItsName(t *testing.T) {
	t.Parallel()
	for name, p := range providers() {
		if got := p.build(withEnv(nil)).Name(); got != name {
			t.Errorf("provider %s builds the plugin of %s", name, got)
		}
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
		_, err := modelPlugins(withEnv(map[string]string{"GOOGLE_API_KEY_": ""}), []modelUse{{model, "coder"}})
		wantFailure(t, err, exitModel, `model "`+model+`" of agent coder needs `+want+" in the environment")
	}
	if _, err := modelPlugins(withEnv(nil), []modelUse{{"ollama/x", "coder"}}); err != nil {
		t.Errorf("ollama needs no key: %v", err)
	}
}

func TestUnknownProviderListsTheKnownOnes(t *testing.T) {
	t.Parallel()
	_, err := modelPlugins(withEnv(nil), []modelUse{{"acme/x", ""}})
	wantFailure(t, err, exitModel, `model "acme/x" (--model): no provider is named "acme"`)
	if _, hint := classify(err); !strings.Contains(hint, "anthropic, dashscope, deepseek, googleai") {
		t.Errorf("hint = %q", hint)
	}
	_, err = modelPlugins(withEnv(nil), []modelUse{{"gemini", "a"}})
	wantFailure(t, err, exitModel, "is not of the form provider/name")
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

func wantFailure(t *testing.T, err error, code int, text string) {
	t.Helper()
	var ce *cliError
	if !errors.As(err, &ce) || ce.code != code || !strings.Contains(err.Error(), text) {
		t.Errorf("error = %v (%+v), want code %d and %q", err, ce, code, text)
	}
}
