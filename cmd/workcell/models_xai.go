package main

import (
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/plugins/compat_oai/xai"
)

// xAI is the xAI API; XAI_BASE_URL is read by the plugin.
func xAI() provider {
	return provider{
		needs: [][]string{{"XAI_API_KEY"}},
		build: func(env) api.Plugin { return &xai.XAI{} },
	}
}
