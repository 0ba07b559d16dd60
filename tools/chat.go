package tools

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
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

// sandboxExpired is what a model reads whose sandbox was removed between two turns of a conversation.
const sandboxExpired = "Your sandbox of earlier turns was removed, probably because it was idle for too long, and this one is new: " +
	"your files are lost, and your processes have exited. Earlier results describe the old sandbox."

// sessionID returns the id of the session of the Genkit agent that ctx belongs to, empty when it belongs to none.
func sessionID(ctx context.Context) string {
	// The session's type has the type of its state, which only the program knows; this much all of them have.
	s, ok := aix.ArtifactStoreFromContext(ctx).(interface{ SessionID() string })
	if !ok {
		return ""
	}
	return s.SessionID()
}

// chatID returns a name for the session of the Genkit agent that ctx belongs to, empty when it belongs to none, or to
// one that checkChat refuses. Ids of sessions are for a client to choose: two users who choose the same one have two
// names, and so have two agents. Who knows the id of a session can resume it, so that is in no label and no log.
func chatID(ctx context.Context) string {
	id := sessionID(ctx)
	if id == "" || checkChat(ctx) != nil {
		return ""
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", session.UserFromContext(ctx), agentOf(ctx), id))
	return "chat-" + hex.EncodeToString(sum[:16])
}

// checkChat refuses the session of a Genkit agent for nobody in particular whose id could be guessed: everybody who
// chooses the same one would work in its sandbox. Genkit's own ids are random, and who has one was given it.
func checkChat(ctx context.Context) error {
	_, bound := session.RunFromContext(ctx)
	if id := sessionID(ctx); bound || id == "" || session.UserFromContext(ctx) != "" || unguessable(id) {
		return nil
	}
	return fmt.Errorf("a client chose the ID of this agent's session, but no user is specified; use session.WithUser, "+
		"or let Genkit choose the IDs: %w", backend.ErrInvalid)
}

// unguessable reports whether id is a random UUID, as Genkit's are.
func unguessable(id string) bool {
	raw, err := hex.DecodeString(strings.ReplaceAll(id, "-", ""))
	return err == nil && len(raw) == 16 && len(id) == 36 && raw[6]>>4 == 4 && raw[8]>>6 == 2
}

// agentOf returns the name of the Genkit agent whose turn ctx belongs to, from the path of Genkit's spans, which has
// elements such as {NAME,t:action,s:agent}; empty when that has none.
func agentOf(ctx context.Context) string {
	defer func() { _ = recover() }() // SpanPath panics outside of Genkit's spans, where a session was put into ctx by hand
	path, _, _ := cutLast(tracing.SpanPath(ctx), ",t:action,s:agent}")
	_, name, _ := cutLast(path, "/{")
	return name
}

// cutLast is strings.Cut at the last sep; without one everything comes before it.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}

// runOf returns the run that ctx belongs to: the one that it is bound to, else the conversation of a Genkit agent,
// whose sandboxes outlive turns and processes. The first wins, so that sub-agents work in the sandboxes of who asked
// them.
func runOf(ctx context.Context) (session.Run, bool) {
	if run, ok := session.RunFromContext(ctx); ok {
		return run, true
	}
	id := chatID(ctx)
	return session.Run{Namespace: record.NamespaceUser, ID: id}, id != ""
}

// chatKey holds the chatID of the session in which a Generate call works already.
type chatKey struct{}

// chatIn makes the binding that of a Genkit agent's session: an isolated sandbox is the session's, in each of its
// turns. An agent that is run within a turn has one of its own, which ends with it.
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
