package main

import (
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/plugins/compat_oai/dashscope"
)

// dashScope is Alibaba's DashScope API; DASHSCOPE_BASE_URL is read by the plugin.
func dashScope() provider {
	return provider{
		needs: [][]string{{"DASHSCOPE_API_KEY"}},
		build: func(env) api.Plugin { return &dashscope.DashScope{} },
	}
}
