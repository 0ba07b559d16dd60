package main

import (
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/plugins/compat_oai/openrouter"
)

// openRouter is the OpenRouter API; OPENROUTER_BASE_URL is read by the plugin.
func openRouter() provider {
	return provider{
		needs: [][]string{{"OPENROUTER_API_KEY"}},
		build: func(env) api.Plugin { return &openrouter.OpenRouter{} },
	}
}
