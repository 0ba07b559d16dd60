package main

import (
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/plugins/compat_oai/kimi"
)

// kimiModels is Moonshot's API; KIMI_BASE_URL and MOONSHOT_BASE_URL are read by the plugin.
func kimiModels() provider {
	return provider{
		needs: [][]string{{"KIMI_API_KEY", "MOONSHOT_API_KEY"}},
		build: func(env) api.Plugin { return &kimi.Kimi{} },
	}
}
