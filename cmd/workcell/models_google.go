package main

import (
	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/plugins/googlegenai"
)

// googleAI is the Gemini API. The base URL can be set with GOOGLE_GEMINI_BASE_URL, which the plugin reads.
func googleAI() provider {
	return provider{
		needs: [][]string{{"GEMINI_API_KEY", "GOOGLE_API_KEY"}},
		build: func(env) api.Plugin { return &googlegenai.GoogleAI{} },
	}
}

// vertexAI is Gemini on Google Cloud: with the project's default credentials, or with an API key ("express mode"). The
// base URL can be set with GOOGLE_VERTEX_BASE_URL. The plugin reads all of them.
func vertexAI() provider {
	return provider{
		needs:  [][]string{{"GOOGLE_CLOUD_PROJECT"}, {"GOOGLE_CLOUD_LOCATION", "GOOGLE_CLOUD_REGION"}},
		orElse: []string{"VERTEX_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENAI_API_KEY", "GOOGLE_VERTEX_BASE_URL"},
		build:  func(env) api.Plugin { return &googlegenai.VertexAI{} },
	}
}
