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

// Document is the agent's file.
func (a *Agent) Document() *frontmatter.Document { return a.doc }

// RequestOver returns what an agent with s asks of a sandbox in a run whose sandboxes are like base, and the fields that s
// names itself. As to the others the agent takes a sandbox as it finds it.
func RequestOver(s frontmatter.Sandbox, base session.Request) (req session.Request, fields []string) {
	return (&binding{cfg: s}).request(session.WithBase(context.Background(), base), s.Runtime)
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
