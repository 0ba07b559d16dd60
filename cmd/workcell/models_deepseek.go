package main

import (
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/plugins/compat_oai/deepseek"
)

// deepSeek is the DeepSeek API; DEEPSEEK_BASE_URL is read by the plugin.
func deepSeek() provider {
	return provider{
		needs: [][]string{{"DEEPSEEK_API_KEY"}},
		build: func(env) api.Plugin { return &deepseek.DeepSeek{} },
	}
}
