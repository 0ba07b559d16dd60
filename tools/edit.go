package tools

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/textedit"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

// maxEdit is the largest file, in bytes, that sandbox_fs_edit changes or makes: it is held in memory several times.
const maxEdit = 16 << 20

// maxEditLines is how many line numbers an answer names.
const maxEditLines = 20

func (b *binding) fsEdit(ctx context.Context, in fsEditInput) (out fsEditOutput, err error) {
	if in.OldString == *in.NewString {
		return out, toolspec.Failf(toolspec.CodeInvalid, "old_string and new_string are the same")
	}
	s, err := b.sandbox(ctx, in.SandboxID)
	if err != nil {
		return out, err
	}
	info, err := s.EditFile(ctx, in.Path, maxEdit, func(old []byte) ([]byte, error) {
		found := textedit.Find(old, in.OldString)
		out.Matches, out.Lines = int64(found.Count()), found.Lines(maxEditLines)
		if fail := ambiguous(found, in); fail != nil {
			return nil, fail
		}
		data, err := found.Replace(*in.NewString, maxEdit)
		if err != nil {
			return nil, toolspec.Failf(toolspec.CodeTooLarge, "the edited file would exceed the limit of %d bytes", maxEdit)
		}
		if b.check != nil {
			if fail := b.check(ctx, toolspec.Args{Files: map[string]int64{in.Path: int64(len(data))}}); fail != nil {
				err = fail
			}
		}
		return data, err
	})
	var known *toolspec.Error
	switch {
	case errors.As(err, &known):
		out.Error = known
		return out, nil
	case errors.Is(err, backend.ErrTimeout):
		known = toolspec.ErrorOf(err).WithRemediation("Wait until other programs stop writing to the file, then call again.")
		known.Retryable = true
		return out, known
	}
	out.OK, out.Path, out.SizeBytes = true, absolute(s, info.Path), info.Size
	return out, err
}

// ambiguous returns what to tell a caller whose text does not occur as often as it must; nil when it does.
func ambiguous(found *textedit.Search, in fsEditInput) *toolspec.Error {
	name, n := sanitize.Clip(in.Path), found.Count()
	switch {
	case n == 1 || n > 0 && in.ReplaceAll:
		return nil
	case n > 0:
		return toolspec.Failf(toolspec.CodeInvalid, "old_string occurs %d times in %s, at lines %s", n, name, places(found)).
			WithRemediation("Add surrounding lines to old_string until it occurs once, or pass replace_all: true.")
	}
	fail := toolspec.Failf(toolspec.CodeInvalid, "old_string occurs 0 times in %s", name).
		WithRemediation("Read the file with sandbox_fs_read and copy the text exactly, including white space.")
	if line := found.Near(); line > 0 {
		fail.Message += fmt.Sprintf("; the lines from %d on differ only in white space", line)
	}
	return fail
}

// places lists the lines of the matches.
func places(found *textedit.Search) string {
	text := strings.Trim(strings.ReplaceAll(fmt.Sprint(found.Lines(maxEditLines)), " ", ", "), "[]")
	if more := found.Count() - maxEditLines; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
