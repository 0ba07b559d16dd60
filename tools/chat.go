package tools

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"github.com/firebase/genkit/go/ai"
	aix "github.com/firebase/genkit/go/ai/exp"

	"github.com/workcell-dev/workcell/internal/isolated"
	"github.com/workcell-dev/workcell/internal/transcript"
	"github.com/workcell-dev/workcell/session"
)

// sandboxExpired is what a model reads whose sandbox was removed between two turns of a conversation.
const sandboxExpired = "Your sandbox of earlier turns is gone, most likely because it was idle for too long, and this one is new: files that " +
	"you made are lost, and processes that you started have ended. Earlier results describe the old one."

// chatID returns a name for the session of a Genkit agent that ctx belongs to, empty when it belongs to none. Who knows the
// id of a session can resume it, so that is in no label and no log.
func chatID(ctx context.Context) string {
	// The session's type has the type of its state, which only the program knows; this much all of them have.
	s, ok := aix.ArtifactStoreFromContext(ctx).(interface{ SessionID() string })
	if !ok || s.SessionID() == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(s.SessionID()))
	return "chat-" + hex.EncodeToString(sum[:16])
}

// runOf returns the run that ctx belongs to: the one that it is bound to, else the conversation of a Genkit agent, whose
// sandboxes outlive turns and processes. The first wins, so that sub-agents work in the sandboxes of who asked them.
func runOf(ctx context.Context) (session.Run, bool) {
	if run, ok := session.RunFromContext(ctx); ok {
		return run, true
	}
	id := chatID(ctx)
	return session.Run{Namespace: session.NamespaceUser, ID: id}, id != ""
}

// chatIn makes the binding that of a Genkit agent's session: an isolated sandbox is the session's, in each of its turns.
func (b *binding) chatIn(ctx context.Context) {
	if b.chat = chatID(ctx); b.chat != "" && b.isolated != "" {
		b.isolated = isolated.Name(b.chat)
	}
}

// remembers notes whether the conversation has left a sandbox, which is to be there still.
func (b *binding) remembers(messages []*ai.Message) {
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

// noticed returns the request of an iteration with what the model is to know of its sandbox, once.
func (b *binding) noticed(p *ai.GenerateParams) *ai.GenerateParams {
	b.mu.Lock()
	expired := b.expired
	b.expired = false
	b.mu.Unlock()
	if !expired {
		return p
	}
	req, params := *p.Request, *p
	req.Messages = append(slices.Clip(req.Messages), transcript.Notice(sandboxExpired))
	params.Request = &req
	return &params
}
