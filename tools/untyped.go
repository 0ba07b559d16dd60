package tools

import (
	"context"

	"github.com/firebase/genkit/go/ai"
)

// describeOutput asks for the form of the answer in words instead of by the provider's own means, where these do not go
// together with tools: Gemini models before 3 refuse every request that has both ("Function calling with a response
// mime type is unsupported"), and Genkit sends both. Genkit still checks the answer against the schema.
func describeOutput(req *ai.GenerateActionOptions) {
	if req.Output == nil {
		return
	}
	switch provider(req.Model) {
	case "googleai", "vertexai":
	default:
		return
	}
	out := *req.Output
	out.Constrained = false // Genkit puts the schema into the prompt then
	req.Output = &out
	req.Use = append(req.Use, local("workcell/untyped", &ai.Hooks{WrapModel: untyped}))
}

// untyped hides the form of the answer from the provider when tools are offered.
func untyped(ctx context.Context, p *ai.ModelParams, next ai.ModelNext) (*ai.ModelResponse, error) {
	if p.Request == nil || p.Request.Output == nil || len(p.Request.Tools) == 0 {
		return next(ctx, p)
	}
	req := *p.Request
	req.Output = &ai.ModelOutputConfig{}
	return next(ctx, &ai.ModelParams{Request: &req, Callback: p.Callback})
}
