//go:build !no_models

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
func providers(e environ.Lookup) map[string]provider {
	return map[string]provider{
		"anthropic":  keyed(&anthropic.Anthropic{}, "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
		"dashscope":  keyed(&dashscope.DashScope{}, "DASHSCOPE_API_KEY"),
		"deepseek":   keyed(&deepseek.DeepSeek{}, "DEEPSEEK_API_KEY"),
		"googleai":   keyed(&googlegenai.GoogleAI{}, "GEMINI_API_KEY", "GOOGLE_API_KEY"),
		"kimi":       keyed(&kimi.Kimi{}, "KIMI_API_KEY", "MOONSHOT_API_KEY"),
		"ollama":     {plugin: &ollama.Ollama{ServerAddress: ollamaAddress(e.Get("OLLAMA_HOST")), Timeout: ollamaTimeoutSeconds}},
		"openai":     keyed(&openai.OpenAI{}, "OPENAI_API_KEY"),
		"openrouter": keyed(&openrouter.OpenRouter{}, "OPENROUTER_API_KEY"),
		"vertexai": { // with the project's default credentials, or with an API key ("express mode")
			needs:  [][]string{{"GOOGLE_CLOUD_PROJECT"}, {"GOOGLE_CLOUD_LOCATION", "GOOGLE_CLOUD_REGION"}},
			orElse: []string{"VERTEX_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_API_KEY", "GOOGLE_VERTEX_BASE_URL"},
			plugin: &googlegenai.VertexAI{},
		},
		"xai": keyed(&xai.XAI{}, "XAI_API_KEY"),
		"zai": keyed(&zai.ZAI{}, "ZAI_API_KEY"),
	}
}

// keyed returns a provider that needs one of some variables.
func keyed(plugin api.Plugin, key ...string) provider {
	return provider{needs: [][]string{key}, plugin: plugin}
}
