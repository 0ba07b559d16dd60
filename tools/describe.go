package tools

import (
	"context"

	"github.com/firebase/genkit/go/core/api"
	"github.com/firebase/genkit/go/genkit"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/session"
)

// InputSchema is the JSON Schema of the agent's input; nil when the file gives none.
func (a *Agent) InputSchema() map[string]any {
	action := genkit.LookupAction(a.g, api.KeyFromName(api.ActionTypeExecutablePrompt, a.prompt.Name()))
	if action == nil {
		return nil
	}
	return action.Desc().InputSchema
}

// SharedSandbox is what the agent asks of the sandbox that it shares with its run; false when it asks for none, or for
// one of its own.
func (a *Agent) SharedSandbox() (session.Request, bool) {
	s := a.doc.Sandbox
	if s == nil || s.Mode != frontmatter.ModeCode || s.Session != "" && s.Session != frontmatter.SessionDefault {
		return session.Request{}, false
	}
	req, _ := (&binding{cfg: *s}).request(context.Background(), s.Runtime)
	return req, true
}
