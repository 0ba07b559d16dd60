package workflow

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/transcript"
)

// maxConversations is the maximum size in bytes of all recorded conversations of a run's active agents. A conversation
// that exceeds it is not recorded.
const maxConversations = 64 << 20

// record returns a context with which the step's agent records the conversation in the journal. If the run was
// interrupted during this attempt, the agent continues the recorded conversation. The returned function stops recording
// and returns the journal's error.
func (ex *execution) record(ctx context.Context) (context.Context, func() error) {
	if ex.run.opts.Journal == nil && ex.past == nil {
		return ctx, func() error { return nil }
	}
	held := int64(0) // only the recorder calls write, sequentially and never after Close
	if ex.past != nil {
		held = int64(ex.past.Bytes())
		ex.run.conversations.Add(held)
	}
	write := func(ctx context.Context, part json.RawMessage) error {
		size := int64(len(part))
		if ex.run.conversations.Add(size) > maxConversations && size > smallPart {
			ex.run.conversations.Add(-size)
			return transcript.ErrFull
		}
		held += size
		why, restarts := transcript.Ends(part)
		e := Entry{Kind: EventStepProgress, Attempt: ex.attempts, Conversation: part, Repeats: restarts}
		if why != "" {
			return ex.note(ctx, e, Event{Lost: why})
		}
		e = ex.entry(e)
		return ex.run.record(ctx, &e)
	}
	rec := transcript.New(ex.agent(), ex.isolatedName(), ex.past, write)
	rec.Interrupts = func(ctx context.Context, err error) bool {
		return errors.Is(err, backend.ErrLost) && ex.canRepeat(ctx, err)
	}
	return transcript.With(ex.label(ctx, rec), rec), func() error {
		err := rec.Close()
		ex.run.conversations.Add(-held)
		return err
	}
}

// smallPart is the maximum size of an always recorded part, for example the part about the end of the recording.
const smallPart = 1 << 10

// isolatedName returns the name of an agent's isolated sandbox in this attempt. The name is the same in every process.
func (ex *execution) isolatedName() string {
	return rules.IsolatedName("agent-" + digest(fmt.Appendf(nil, "%s\n%d\n%d", ex.path, ex.visit, ex.attempts), 10))
}
