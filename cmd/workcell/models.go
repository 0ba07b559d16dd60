package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/firebase/genkit/go/core/api"

	"github.com/workcell-dev/workcell/internal/suggest"
)

// provider is a family of models: the part of a model's name before the first slash. Its Genkit plugin is built only
// when an agent needs it, because a plugin without its key panics at Init.
type provider struct {
	// needs are the variables that must be set: one of every group.
	needs [][]string
	// orElse are variables of which any one makes needs unnecessary.
	orElse []string
	// build makes the plugin. The needs are met when it is called.
	build func(e env) api.Plugin
}

// providers are the families this command knows, by name.
func providers() map[string]provider {
	return map[string]provider{
		"googleai":   googleAI(),
		"vertexai":   vertexAI(),
		"anthropic":  anthropicModels(),
		"openai":     openAI(),
		"ollama":     ollamaModels(),
		"deepseek":   deepSeek(),
		"xai":        xAI(),
		"kimi":       kimiModels(),
		"zai":        zAI(),
		"dashscope":  dashScope(),
		"openrouter": openRouter(),
	}
}

// modelUse is a model and who asks for it.
type modelUse struct {
	model string // "provider/name"
	agent string // agent whose file names it; empty when --model does
}

func (u modelUse) String() string {
	if u.agent == "" {
		return fmt.Sprintf("model %q (--model)", u.model)
	}
	return fmt.Sprintf("model %q of agent %s", u.model, u.agent)
}

// provider gives the name of the model's provider, which is one of those that this command knows.
func (u modelUse) provider() (string, error) {
	name, rest, _ := strings.Cut(u.model, "/")
	if name == "" || rest == "" {
		return "", fail(exitModel, fmt.Errorf("%s is not of the form provider/name", u), "for example googleai/gemini-2.5-flash")
	}
	if _, ok := providers()[name]; !ok {
		return "", unknownProvider(u, name)
	}
	return name, nil
}

// modelPlugins builds the plugins that uses need, one per provider. The error names every variable that is missing.
func modelPlugins(e env, uses []modelUse) ([]api.Plugin, error) {
	known := providers()
	plugins := map[string]api.Plugin{}
	for _, u := range uses {
		name, err := u.provider()
		if err != nil {
			return nil, err
		}
		if plugins[name] != nil {
			continue
		}
		p := known[name]
		if missing := p.missing(e); len(missing) > 0 {
			return nil, fail(exitModel, fmt.Errorf("%s needs %s in the environment", u, strings.Join(missing, " and ")),
				"export it, or choose another model with --model provider/name")
		}
		plugins[name] = p.build(e)
	}
	var out []api.Plugin
	for _, name := range slices.Sorted(maps.Keys(plugins)) {
		out = append(out, plugins[name])
	}
	return out, nil
}

func unknownProvider(u modelUse, name string) error {
	known := slices.Sorted(maps.Keys(providers()))
	hint := "known providers: " + strings.Join(known, ", ")
	if near, ok := suggest.Closest(name, known); ok {
		hint = fmt.Sprintf("did you mean %q? ", near) + hint
	}
	if name == "scripted" {
		hint = "recorded answers are chosen with --model scripted/PATH.yaml"
	}
	return fail(exitModel, fmt.Errorf("%s: no provider is named %q", u, name), hint)
}

// missing gives the groups of needs of which no variable has a value, as "A" or "A or B".
func (p provider) missing(e env) []string {
	if name, _ := e.first(p.orElse...); name != "" {
		return nil
	}
	var out []string
	for _, group := range p.needs {
		if name, _ := e.first(group...); name == "" {
			out = append(out, strings.Join(group, " or "))
		}
	}
	return out
}
