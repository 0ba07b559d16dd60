//go:build !no_models

package models

import (
	"net/http"
	"strings"
	"sync"

	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
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
	"github.com/openai/openai-go/option"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/tools"
)

// ollamaTimeoutSeconds is the timeout of one answer. The plugin's default of 30 s is too short for a large local model.
const ollamaTimeoutSeconds = 600

// genkitPlugins returns the plugins of the providers, by name. Each plugin reads its keys from the environment. It also
// reads the address of an alternative server, for example from ANTHROPIC_BASE_URL or OPENAI_BASE_URL (for any server
// with that API: vLLM, LM Studio, …).
func genkitPlugins(e environ.Lookup) map[string]api.Plugin {
	registerOllama()
	local := ollamaScheme + ollamaAddress(e.Get("OLLAMA_HOST"))
	client := &http.Client{Transport: tools.ExactTransport(http.DefaultTransport)}
	opts := []option.RequestOption{option.WithHTTPClient(client)}
	return map[string]api.Plugin{
		"anthropic":  &anthropic.Anthropic{Opts: []anthropicoption.RequestOption{anthropicoption.WithHTTPClient(client)}},
		"dashscope":  &dashscope.DashScope{Opts: opts},
		"deepseek":   &deepseek.DeepSeek{Opts: opts},
		"googleai":   &googlegenai.GoogleAI{},
		"kimi":       &kimi.Kimi{Opts: opts},
		"ollama":     &ollama.Ollama{ServerAddress: local, Timeout: ollamaTimeoutSeconds},
		"openai":     &openai.OpenAI{Opts: opts},
		"openrouter": &openrouter.OpenRouter{Opts: opts},
		"vertexai":   &googlegenai.VertexAI{},
		"xai":        &xai.XAI{Opts: opts},
		"zai":        &zai.ZAI{Opts: opts},
	}
}

// ollamaScheme is the prefix of the scheme for addresses with tools.ExactTransport. The Ollama plugin accepts no
// HTTP client. It uses http.DefaultTransport, whose type must not change.
const ollamaScheme = "ollama+"

var registerOllama = sync.OnceFunc(func() {
	t := http.DefaultTransport.(*http.Transport) // no part of the program replaces it
	for _, scheme := range []string{"http", "https"} {
		t.RegisterProtocol(ollamaScheme+scheme, ollamaTransport{tools.ExactTransport(t)})
	}
})

type ollamaTransport struct{ next http.RoundTripper }

func (t ollamaTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.URL.Scheme = strings.TrimPrefix(req.URL.Scheme, ollamaScheme)
	return t.next.RoundTrip(req)
}
