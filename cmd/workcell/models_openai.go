package main

import (
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/plugins/compat_oai/openai"
)

// openAI is the OpenAI API and, with OPENAI_BASE_URL, any server that speaks it (vLLM, LM Studio, …).
func openAI() provider {
	return provider{
		needs: [][]string{{"OPENAI_API_KEY"}},
		build: func(env) api.Plugin { return &openai.OpenAI{} },
	}
}
