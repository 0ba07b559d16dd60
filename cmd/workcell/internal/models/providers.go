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

	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
)

// ollamaTimeoutSeconds bounds one answer. The plugin's own default, 30 s, is less than a large local model needs.
const ollamaTimeoutSeconds = 600

// genkitPlugins returns the plugins of the providers, by name. Each reads its keys itself, and the address of another server:
// ANTHROPIC_BASE_URL, OPENAI_BASE_URL (any server that speaks that API: vLLM, LM Studio, …) and so on.
func genkitPlugins(e environ.Lookup) map[string]api.Plugin {
	return map[string]api.Plugin{
		"anthropic":  &anthropic.Anthropic{},
		"dashscope":  &dashscope.DashScope{},
		"deepseek":   &deepseek.DeepSeek{},
		"googleai":   &googlegenai.GoogleAI{},
		"kimi":       &kimi.Kimi{},
		"ollama":     &ollama.Ollama{ServerAddress: ollamaAddress(e.Get("OLLAMA_HOST")), Timeout: ollamaTimeoutSeconds},
		"openai":     &openai.OpenAI{},
		"openrouter": &openrouter.OpenRouter{},
		"vertexai":   &googlegenai.VertexAI{},
		"xai":        &xai.XAI{},
		"zai":        &zai.ZAI{},
	}
}
