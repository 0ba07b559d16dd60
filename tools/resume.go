package tools

import (
	"context"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/internal/transcript"
)

// What a model is told of a sandbox that is not as its conversation left it.
const (
	sandboxReplaced = "The program that runs you was interrupted and has resumed. Your sandbox was lost meanwhile and is a new, empty one: " +
		"files that you made are gone, and processes that you started have ended. Earlier results describe the old one."
	sandboxRebuilt = "The program that runs you was interrupted and has resumed. Your sandbox was made again around its workspace: " +
		"the files of /workspace are as they were, files elsewhere are gone, and processes that you started have ended."
)

// recordedBy makes the binding part of a conversation that is recorded, if it is.
func (b *binding) recordedBy(rec *transcript.Recorder) {
	b.record = rec
	if rec != nil && b.isolated != "" {
		b.isolated = rec.Sandbox() // where the process that resumes the run finds it
	}
}

// continueIn opens the sandbox of a conversation that an earlier process had begun and that used it, and has the model
// know when it is not as that left it. What keeps it from opening is for the tools to report.
func (b *binding) continueIn(ctx context.Context) {
	if b.record == nil {
		return
	}
	past, err := b.record.Progress()
	if err != nil || !leftSandbox(past.Tools) {
		return
	}
	s, created, err := b.open(context.WithValue(ctx, openingKey{}, nil), b.name(ctx))
	switch {
	case err != nil:
	case created:
		b.record.Notice(sandboxReplaced)
	case s.Info().Created.After(past.Recorded):
		b.record.Notice(sandboxRebuilt)
	}
}

// leftSandbox reports whether a conversation has left a sandbox, by the tools that it used, the last one last: one that the
// model closed is not missed.
func leftSandbox(used []string) bool {
	for _, tool := range slices.Backward(used) {
		if strings.HasPrefix(tool, "sandbox_") && tool != toolspec.ToolRun && tool != unknownTool {
			return tool != toolspec.ToolClose
		}
	}
	return false
}
