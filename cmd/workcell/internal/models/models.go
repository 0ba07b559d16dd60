// Package models contains the model providers for Genkit and for the model proxy.
package models

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/firebase/genkit/go/core/api"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/suggest"
)

// Use is a model and an agent with this model.
type Use struct {
	Model string // "provider/name"
	Agent string // agent whose file sets the model; empty if --model sets it
}

func (u Use) String() string {
	if u.Agent == "" {
		return fmt.Sprintf("model %q (--model)", u.Model)
	}
	return fmt.Sprintf("model %q of agent %s", u.Model, u.Agent)
}

// Provider returns the name of the model's provider. It returns an error for unknown providers.
func (u Use) Provider() (string, error) {
	name, rest, _ := strings.Cut(u.Model, "/")
	if name == "" || rest == "" {
		kind := map[bool]hint.Kind{true: hint.Usage, false: hint.Model}[u.Agent == ""]
		return "", hint.New(kind, fmt.Errorf("%s must have the form provider/name", u),
			"for example googleai/gemini-2.5-flash")
	}
	known := slices.Sorted(maps.Keys(genkitPlugins(environ.Of(nil))))
	if slices.Contains(known, name) {
		return name, nil
	}
	if len(known) == 0 {
		return "", hint.New(hint.Model, fmt.Errorf("%s: this build has no model providers (build tag no_models)", u),
			"use a workcell build that includes them, or recorded answers with --model scripted/PATH.yaml")
	}
	todo := "known providers: " + strings.Join(known, ", ")
	if near, ok := suggest.Closest(name, known); ok {
		todo = fmt.Sprintf("did you mean %q? ", near) + todo
	}
	if name == "scripted" {
		todo = "use --model scripted/PATH.yaml for recorded answers"
	}
	return "", hint.New(hint.Model, fmt.Errorf("unknown model provider %q in %s", name, u), todo)
}

// Plugins returns the plugins required for uses, one per provider. The error lists all missing variables.
func Plugins(e environ.Lookup, uses []Use) ([]api.Plugin, error) {
	known, rows := genkitPlugins(e), table(e)
	plugins := map[string]api.Plugin{}
	for _, u := range uses {
		name, err := u.Provider()
		if err != nil {
			return nil, err
		}
		if err := rows[name].checkKeys(e, u); err != nil {
			return nil, err
		}
		plugins[name] = known[name]
	}
	byName := func(a, b api.Plugin) int { return strings.Compare(a.Name(), b.Name()) }
	return slices.SortedFunc(maps.Values(plugins), byName), nil
}
