// Package models has the Genkit plugins of the model providers that the command knows.
package models

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/firebase/genkit/go/core/api"

	"github.com/workcell-dev/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/suggest"
)

// provider is a family of models: the part of a model's name before the first slash.
type provider struct {
	// needs are the variables that must be set, one of every group: without them the plugin panics at Init.
	needs [][]string
	// orElse are variables of which any one makes needs unnecessary.
	orElse []string
	plugin api.Plugin
}

// Use is a model and the agent that asks for it.
type Use struct {
	Model string // "provider/name"
	Agent string // agent whose file names it; empty when --model does
}

func (u Use) String() string {
	if u.Agent == "" {
		return fmt.Sprintf("model %q (--model)", u.Model)
	}
	return fmt.Sprintf("model %q of agent %s", u.Model, u.Agent)
}

// Provider returns the name of the model's provider, which is one of those that this command knows.
func (u Use) Provider() (string, error) {
	name, rest, _ := strings.Cut(u.Model, "/")
	if name == "" || rest == "" {
		return "", hint.New(hint.Model, fmt.Errorf("%s is not of the form provider/name", u), "for example googleai/gemini-2.5-flash")
	}
	known := slices.Sorted(maps.Keys(providers(environ.Of(nil))))
	if slices.Contains(known, name) {
		return name, nil
	}
	if len(known) == 0 {
		return "", hint.New(hint.Model, fmt.Errorf("%s: this workcell was built without model providers (tag no_models)", u),
			"use a workcell that was built with them; recorded answers are chosen with --model scripted/PATH.yaml")
	}
	todo := "known providers: " + strings.Join(known, ", ")
	if near, ok := suggest.Closest(name, known); ok {
		todo = fmt.Sprintf("did you mean %q? ", near) + todo
	}
	if name == "scripted" {
		todo = "recorded answers are chosen with --model scripted/PATH.yaml"
	}
	return "", hint.New(hint.Model, fmt.Errorf("%s: no provider is named %q", u, name), todo)
}

// Plugins returns the plugins that uses need, one per provider. The error names every variable that is missing.
func Plugins(e environ.Lookup, uses []Use) ([]api.Plugin, error) {
	known := providers(e)
	plugins := map[string]api.Plugin{}
	for _, u := range uses {
		name, err := u.Provider()
		if err != nil {
			return nil, err
		}
		p := known[name]
		if missing := p.missing(e); len(missing) > 0 {
			return nil, hint.New(hint.Model, fmt.Errorf("%s needs %s in the environment", u, strings.Join(missing, " and ")),
				"export it, or choose another model with --model provider/name")
		}
		plugins[name] = p.plugin
	}
	var out []api.Plugin
	for _, name := range slices.Sorted(maps.Keys(plugins)) {
		out = append(out, plugins[name])
	}
	return out, nil
}

// missing returns the groups of needs of which no variable has a value, as "A" or "A or B".
func (p provider) missing(e environ.Lookup) []string {
	if name, _ := e.First(p.orElse...); name != "" {
		return nil
	}
	var out []string
	for _, group := range p.needs {
		if name, _ := e.First(group...); name == "" {
			out = append(out, strings.Join(group, " or "))
		}
	}
	return out
}
