package tools

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/internal/toolspec"
)

// Notices to a model whose sandbox changed since the conversation was interrupted.
const (
	sandboxReplaced = "The program that runs you was interrupted and has resumed. Your sandbox was lost and replaced by " +
		"a new, empty one: your files are lost, and your processes have exited. Earlier results describe the old sandbox."
	sandboxRebuilt = "The program that runs you was interrupted and has resumed. Your sandbox was recreated with its " +
		"workspace: the files in /workspace are unchanged, other files are lost, and your processes have exited."
)

// continueIn opens the sandboxes an earlier process of the conversation used. If a sandbox changed, it records a notice
// for the model. If a sandbox cannot be opened, the tools report the error later.
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
			notice = cmp.Or(notice, sandboxRebuilt) // applies to a replaced sandbox too, which has another name here
		}
	}
	if notice != "" {
		b.record.Notice(notice)
	}
}

// leftSandbox reports whether a conversation still has a sandbox. used lists the conversation's tools, oldest first. A
// sandbox the model closed does not count.
func leftSandbox(used []string) bool {
	for _, tool := range slices.Backward(used) {
		if strings.HasPrefix(tool, "sandbox_") && tool != toolspec.ToolRun && tool != unknownTool {
			return tool != toolspec.ToolClose
		}
	}
	return false
}
