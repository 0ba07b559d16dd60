package main

import (
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/plugins/compat_oai/zai"
)

// zAI is the Z.ai API; ZAI_BASE_URL is read by the plugin.
func zAI() provider {
	return provider{
		needs: [][]string{{"ZAI_API_KEY"}},
		build: func(env) api.Plugin { return &zai.ZAI{} },
	}
}
