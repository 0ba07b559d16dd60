package tools

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/internal/transcript"
)

// What a model is told of a sandbox that is not as its conversation left it.
const (
	sandboxReplaced = "The program that runs you was interrupted and has resumed. Your sandbox was lost and replaced by a new, empty one: " +
		"your files are lost, and your processes have exited. Earlier results describe the old sandbox."
	sandboxRebuilt = "The program that runs you was interrupted and has resumed. Your sandbox was recreated with its workspace: " +
		"the files in /workspace are unchanged, other files are lost, and your processes have exited."
)

// recordedBy makes the binding part of a conversation that is recorded, if it is.
func (b *binding) recordedBy(rec *transcript.Recorder) {
	b.record = rec
	if rec != nil && b.isolated != "" {
		b.isolated = rec.Sandbox() // where the process that resumes the run finds it
	}
}

// continueIn opens the sandboxes of a conversation that an earlier process had begun and that used them, and has the
// model know when one is not as that left it. What keeps it from opening is for the tools to report.
func (b *binding) continueIn(ctx context.Context) {
	if b.record == nil {
		return
	}
	past, err := b.record.Progress()
	if err != nil {
		return
	}
	notice := ""
	for _, key := range past.Sandboxes {
		s, created, err := b.open(context.WithValue(ctx, openingKey{}, nil), cmp.Or(key, b.name(ctx)))
		switch {
		case err != nil:
		case created:
			notice = sandboxReplaced
		case s.Info().Created.After(past.Recorded):
			notice = cmp.Or(notice, sandboxRebuilt) // also when it is the one that was replaced, under its other name
		}
	}
	if notice != "" {
		b.record.Notice(notice)
	}
}

// leftSandbox reports whether a conversation has left a sandbox, by the tools that it used, the last one last: one that
// the model closed is not missed.
func leftSandbox(used []string) bool {
	for _, tool := range slices.Backward(used) {
		if strings.HasPrefix(tool, "sandbox_") && tool != toolspec.ToolRun && tool != unknownTool {
			return tool != toolspec.ToolClose
		}
	}
	return false
}
