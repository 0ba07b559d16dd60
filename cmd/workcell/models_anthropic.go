package main

import (
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/plugins/anthropic"
)

// anthropicModels is the Anthropic API. The base URL can be set with ANTHROPIC_BASE_URL, which the plugin reads.
func anthropicModels() provider {
	return provider{
		needs: [][]string{{"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"}},
		build: func(env) api.Plugin { return &anthropic.Anthropic{} },
	}
}
