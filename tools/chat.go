package tools

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"

	"github.com/firebase/genkit/go/ai"
	aix "github.com/firebase/genkit/go/ai/exp"
	"github.com/firebase/genkit/go/core/tracing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/transcript"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// sandboxExpired is the message to a model whose sandbox was removed between two turns of a conversation.
const sandboxExpired = "Your sandbox of earlier turns was removed, probably because it was idle for too long, and " +
	"this one is new: your files are lost, and your processes have exited. Earlier results describe the old sandbox."

// sessionID returns the id of the Genkit agent's session in ctx, or an empty string if ctx has none.
func sessionID(ctx context.Context) string {
	// Only the program knows the session's type, which depends on the type of its state. All of these types have
	// SessionID.
	s, ok := aix.ArtifactStoreFromContext(ctx).(interface{ SessionID() string })
	if !ok {
		return ""
	}
	return s.SessionID()
}

// chatID returns a sandbox name for the Genkit agent's session in ctx. It is empty if ctx has no session or checkChat
// refuses the session. Clients choose session ids, so the name includes the user and the agent: the same id gives
// different names for different users and agents. Any client with a session id can resume the session. To prevent this,
// the id never appears in labels or logs.
func chatID(ctx context.Context) string {
	id := sessionID(ctx)
	if id == "" || checkChat(ctx) != nil {
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", session.UserFromContext(ctx), agentOf(ctx), id))
	return "chat-" + hex.EncodeToString(sum[:16])
}

// checkChat refuses the session of a Genkit agent if no user is specified and its id is guessable. This check prevents
// clients with the same id from sharing a sandbox. Genkit's own ids are random, so a client can only have such an id if
// it received it.
func checkChat(ctx context.Context) error {
	_, bound := session.RunFromContext(ctx)
	if id := sessionID(ctx); bound || id == "" || session.UserFromContext(ctx) != "" || unguessable(id) {
		return nil
	}
	return fmt.Errorf("a client chose the ID of this agent's session, but no user is specified; use session.WithUser, "+
		"or let Genkit choose the IDs: %w", backend.ErrInvalid)
}

// unguessable reports whether id is a random UUID, like the ids Genkit creates.
func unguessable(id string) bool {
	raw, err := hex.DecodeString(strings.ReplaceAll(id, "-", ""))
	return err == nil && len(raw) == 16 && len(id) == 36 && raw[6]>>4 == 4 && raw[8]>>6 == 2
}

// agentOf returns the name of the Genkit agent whose turn ctx belongs to. It parses the path of Genkit's spans, which
// has elements such as {NAME,t:action,s:agent}. It returns an empty string if the path has no such element.
func agentOf(ctx context.Context) string {
	// SpanPath panics outside of Genkit's spans, for example if a program put a session into ctx itself.
	defer func() { _ = recover() }()
	path := tracing.SpanPath(ctx)
	if i := strings.LastIndex(path, ",t:action,s:agent}"); i >= 0 {
		return path[strings.LastIndex(path[:i], "/{")+2 : i]
	}
	return ""
}

// runOf returns the run of ctx. If ctx is not bound to a run, it returns the run of the Genkit agent's conversation,
// whose sandboxes outlive turns and processes. A bound run takes precedence, so sub-agents use their caller's
// sandboxes.
func runOf(ctx context.Context) (session.Run, bool) {
	if run, ok := session.RunFromContext(ctx); ok {
		return run, true
	}
	id := chatID(ctx)
	return session.Run{Namespace: record.NamespaceUser, ID: id}, id != ""
}

// chatKey holds the chatID of the session a Generate call already uses.
type chatKey struct{}

// chatIn binds b to the session of a Genkit agent. An isolated sandbox then belongs to the session and is available in
// each turn. An agent running within a turn gets a private sandbox, which is removed when the agent ends.
func (b *binding) chatIn(ctx context.Context) error {
	if err := checkChat(ctx); err != nil {
		return err
	}
	id := chatID(ctx)
	if _, within := ctx.Value(agentKey{}).(*Agent); within || id != "" && ctx.Value(chatKey{}) == id {
		return nil
	}
	if b.chat = id; id != "" && b.isolated != "" {
		b.isolated = rules.IsolatedName(id)
	}
	return nil
}

// markUsed notes whether the conversation used a sandbox in earlier turns, which should still exist.
func (b *binding) markUsed(messages []*ai.Message) {
	var used []string
	for _, m := range messages {
		for _, p := range m.Content {
			if p.IsToolResponse() {
				used = append(used, p.ToolResponse.Name)
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used = leftSandbox(used)
}

// withExpiryNotice returns the request of an iteration. If the sandbox expired, the request includes a notice to the
// model, once.
func (b *binding) withExpiryNotice(p *ai.GenerateParams) *ai.GenerateParams {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.expired {
		return p
	}
	b.expired = false
	return transcript.WithNotice(p, sandboxExpired)
}
