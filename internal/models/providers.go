package models

import (
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/plugins/anthropic"
	"github.com/firebase/genkit/go/plugins/compat_oai/dashscope"
	"github.com/firebase/genkit/go/plugins/compat_oai/deepseek"
	"github.com/firebase/genkit/go/plugins/compat_oai/kimi"
	"github.com/firebase/genkit/go/plugins/compat_oai/openai"
	"github.com/firebase/genkit/go/plugins/compat_oai/openrouter"
	"github.com/firebase/genkit/go/plugins/compat_oai/xai"
	"github.com/firebase/genkit/go/plugins/compat_oai/zai"
	"github.com/firebase/genkit/go/plugins/googlegenai"
	"github.com/firebase/genkit/go/plugins/ollama"

	"github.com/workcell-dev/workcell/internal/environ"
)

// ollamaTimeoutSeconds bounds one answer. The plugin's own default, 30 s, is less than a large local model needs.
const ollamaTimeoutSeconds = 600

// providers returns the families this command knows, by name. Each plugin reads its keys itself, and the address of
// another server: ANTHROPIC_BASE_URL, OPENAI_BASE_URL (any server that speaks that API: vLLM, LM Studio, …) and so on.
func providers() map[string]provider {
	return map[string]provider{
		"anthropic": {
			needs: [][]string{{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"}},
			build: func(environ.Lookup) api.Plugin { return &anthropic.Anthropic{} },
		},
		"dashscope": {
			needs: [][]string{{"DASHSCOPE_API_KEY"}},
			build: func(environ.Lookup) api.Plugin { return &dashscope.DashScope{} },
		},
		"deepseek": {
			needs: [][]string{{"DEEPSEEK_API_KEY"}},
			build: func(environ.Lookup) api.Plugin { return &deepseek.DeepSeek{} },
		},
		"googleai": {
			needs: [][]string{{"GEMINI_API_KEY", "GOOGLE_API_KEY"}},
			build: func(environ.Lookup) api.Plugin { return &googlegenai.GoogleAI{} },
		},
		"kimi": {
			needs: [][]string{{"KIMI_API_KEY", "MOONSHOT_API_KEY"}},
			build: func(environ.Lookup) api.Plugin { return &kimi.Kimi{} },
		},
		"ollama": { // on this machine, or where OLLAMA_HOST points
			build: func(e environ.Lookup) api.Plugin {
				return &ollama.Ollama{ServerAddress: ollamaAddress(e.Get("OLLAMA_HOST")), Timeout: ollamaTimeoutSeconds}
			},
		},
		"openai": {
			needs: [][]string{{"OPENAI_API_KEY"}},
			build: func(environ.Lookup) api.Plugin { return &openai.OpenAI{} },
		},
		"openrouter": {
			needs: [][]string{{"OPENROUTER_API_KEY"}},
			build: func(environ.Lookup) api.Plugin { return &openrouter.OpenRouter{} },
		},
		"vertexai": { // with the project's default credentials, or with an API key ("express mode")
			needs:  [][]string{{"GOOGLE_CLOUD_PROJECT"}, {"GOOGLE_CLOUD_LOCATION", "GOOGLE_CLOUD_REGION"}},
			orElse: []string{"VERTEX_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_API_KEY", "GOOGLE_VERTEX_BASE_URL"},
			build:  func(environ.Lookup) api.Plugin { return &googlegenai.VertexAI{} },
		},
		"xai": {
			needs: [][]string{{"XAI_API_KEY"}},
			build: func(environ.Lookup) api.Plugin { return &xai.XAI{} },
		},
		"zai": {
			needs: [][]string{{"ZAI_API_KEY"}},
			build: func(environ.Lookup) api.Plugin { return &zai.ZAI{} },
		},
	}
}
