package models

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// row is a provider. The names of the models begin with the provider's name and a slash.
type row struct {
	// needs are the required variables: at least one variable of every group must be set. Otherwise, the plugin panics in
	// Init.
	needs [][]string
	// orElse are alternatives. If one of them is set, needs is not required.
	orElse []string

	// Settings for the model proxy. A provider without dialects uses another authentication than a key.
	dialects []model.Dialect
	baseEnv  []string // override base
	base     string
	header   string // header for the key, which is the first set variable of needs
	scheme   string // prefix of the key
}

// table returns the providers by name.
func table(e environ.Lookup) map[string]row {
	openai := func(base string, baseEnv []string, key ...string) row {
		return row{
			needs: [][]string{key}, dialects: []model.Dialect{model.OpenAIChat}, baseEnv: baseEnv, base: base,
			header: "Authorization", scheme: "Bearer ",
		}
	}
	rows := map[string]row{
		"anthropic": {
			needs:    [][]string{{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"}},
			dialects: []model.Dialect{model.Anthropic}, baseEnv: []string{"ANTHROPIC_BASE_URL"},
			base: "https://api.anthropic.com", header: "X-Api-Key",
		},
		"dashscope": openai("https://dashscope-intl.aliyuncs.com/compatible-mode/v1", []string{"DASHSCOPE_BASE_URL"},
			"DASHSCOPE_API_KEY"),
		"deepseek": openai("https://api.deepseek.com", []string{"DEEPSEEK_BASE_URL"}, "DEEPSEEK_API_KEY"),
		"googleai": {
			needs:    [][]string{{"GEMINI_API_KEY", "GOOGLE_API_KEY"}},
			dialects: []model.Dialect{model.Gemini}, baseEnv: []string{"GOOGLE_GEMINI_BASE_URL"},
			base: "https://generativelanguage.googleapis.com", header: "X-Goog-Api-Key",
		},
		"kimi": openai("https://api.moonshot.ai/v1", []string{"KIMI_BASE_URL", "MOONSHOT_BASE_URL"}, "KIMI_API_KEY",
			"MOONSHOT_API_KEY"),
		"ollama":     {dialects: []model.Dialect{model.OpenAIChat}, base: ollamaAddress(e.Get("OLLAMA_HOST")) + "/v1"},
		"openai":     openai("https://api.openai.com/v1", []string{"OPENAI_BASE_URL"}, "OPENAI_API_KEY"),
		"openrouter": openai("https://openrouter.ai/api/v1", []string{"OPENROUTER_BASE_URL"}, "OPENROUTER_API_KEY"),
		"vertexai": { // with the project's default credentials, or with an API key ("express mode")
			needs:  [][]string{{"GOOGLE_CLOUD_PROJECT"}, {"GOOGLE_CLOUD_LOCATION", "GOOGLE_CLOUD_REGION"}},
			orElse: []string{"VERTEX_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_API_KEY", "GOOGLE_VERTEX_BASE_URL"},
		},
		"xai": openai("https://api.x.ai/v1", []string{"XAI_BASE_URL"}, "XAI_API_KEY"),
		"zai": openai("https://api.z.ai/api/paas/v4", []string{"ZAI_BASE_URL"}, "ZAI_API_KEY"),
	}
	both := rows["openai"]
	both.dialects = append(both.dialects, model.OpenAIResponses)
	rows["openai"] = both
	return rows
}

// Secrets returns a replacer to remove the keys of all providers from a text. A provider's error may quote the
// request.
func Secrets(e environ.Lookup) sanitize.Secrets {
	var keys []string
	for _, r := range table(e) {
		for _, name := range append(slices.Concat(r.needs...), r.orElse...) {
			secret := strings.HasSuffix(name, "_KEY") || strings.HasSuffix(name, "_TOKEN")
			if key := e.Get(name); secret && len(key) >= 8 { // shorter keys may be words of other texts
				keys = append(keys, key)
			}
		}
	}
	return sanitize.NewSecrets("[key]", keys...)
}

// checkKeys returns an error with the groups of needs without a set variable, for example "GEMINI_API_KEY or
// GOOGLE_API_KEY".
func (r row) checkKeys(e environ.Lookup, u Use) error {
	var missing []string
	for _, group := range r.needs {
		if name, _ := e.First(group...); name == "" {
			missing = append(missing, strings.Join(group, " or "))
		}
	}
	if other, _ := e.First(r.orElse...); missing == nil || other != "" {
		return nil
	}
	return hint.New(hint.Model, fmt.Errorf("%s requires %s", u, strings.Join(missing, " and ")),
		"set the variable, or choose another model with --model provider/name")
}

// Dialects returns the APIs of a provider with support in the model proxy.
func Dialects(provider string) []model.Dialect { return table(environ.Of(nil))[provider].dialects }

// Upstream returns the provider of a use for the model proxy, including the key.
func Upstream(e environ.Lookup, u Use) (model.Provider, error) {
	name, err := u.Provider()
	if err != nil {
		return model.Provider{}, err
	}
	r := table(e)[name]
	if len(r.dialects) == 0 {
		return model.Provider{}, hint.New(hint.Model, fmt.Errorf("%s: the model proxy cannot authenticate to %s", u, name),
			"choose a model whose provider uses API keys")
	}
	if err := r.checkKeys(e, u); err != nil {
		return model.Provider{}, err
	}
	variable, address := e.First(r.baseEnv...)
	base, err := url.Parse(cmp.Or(address, r.base))
	if err != nil || base.Host == "" || base.Scheme != "https" && base.Scheme != "http" {
		return model.Provider{}, hint.New(hint.Model, fmt.Errorf("%s: %s is not an http or https URL", u, variable),
			"for example "+r.base)
	}
	return model.Provider{Name: name, Dialects: r.dialects, Base: base, Auth: r.auth(e)}, nil
}

// auth returns the function to set the key in a request header.
func (r row) auth(e environ.Lookup) func(http.Header) error {
	if len(r.needs) == 0 {
		return nil
	}
	variable, key := e.First(r.needs[0]...)
	header, scheme := r.header, r.scheme
	if variable == "ANTHROPIC_AUTH_TOKEN" {
		header, scheme = "Authorization", "Bearer "
	}
	return func(h http.Header) error {
		h.Set(header, scheme+key)
		return nil
	}
}
