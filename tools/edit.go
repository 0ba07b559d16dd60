package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/toolspec"
)

// maxEdit is the size in bytes of the largest file for sandbox_fs_edit. The tool holds several copies of the file in
// memory.
const maxEdit = 16 << 20

// maxEditLines is the maximum number of line numbers in a result.
const maxEditLines = 20

func (b *binding) fsEdit(ctx context.Context, in fsEditInput) (out fsEditOutput, err error) {
	if in.OldString == *in.NewString {
		return out, toolspec.Failf(toolspec.CodeInvalid, "old_string and new_string are the same")
	}
	s, err := b.sandbox(ctx, in.SandboxID)
	if err != nil {
		return out, err
	}
	leave, err := bound.Edits(ctx).Enter(ctx)
	if err != nil {
		return out, err
	}
	defer leave()
	info, err := s.EditFile(ctx, in.Path, maxEdit, func(old []byte) ([]byte, error) {
		found := findText(old, in.OldString)
		out.Matches, out.Lines = int64(found.Count()), found.Lines(maxEditLines)
		if fail := ambiguous(found, in); fail != nil {
			return nil, fail
		}
		data, err := found.Replace(*in.NewString, maxEdit)
		if err != nil {
			return nil, toolspec.Failf(toolspec.CodeTooLarge, "the edited file would exceed the limit of %d bytes", maxEdit)
		}
		if fail := b.check(ctx, toolspec.Args{Files: map[string]int64{in.Path: int64(len(data))}}); fail != nil {
			return nil, fail
		}
		return data, nil
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

// ambiguous returns an error if the number of occurrences of the text is wrong for the edit. Otherwise it returns nil.
func ambiguous(found *textSearch, in fsEditInput) *toolspec.Error {
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
func places(found *textSearch) string {
	text := strings.Trim(strings.ReplaceAll(fmt.Sprint(found.Lines(maxEditLines)), " ", ", "), "[]")
	if more := found.Count() - maxEditLines; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// errTextTooLarge means the file would exceed the size limit.
var errTextTooLarge = errors.New("the file would be too large")

// textSearch is the result of a search for a text in a file. The search treats CR LF and LF as equal and compares all
// other characters exactly.
type textSearch struct {
	file  []byte
	plain []byte  // file with CR LF replaced by LF
	cuts  []int32 // offsets in plain of the CR LF line ends of file
	old   string  // searched text, with CR LF replaced by LF
}

// findText searches file for old, which must not be empty. file has at most maxEdit bytes.
func findText(file []byte, old string) *textSearch {
	s := &textSearch{file: file, plain: bytes.ReplaceAll(file, []byte("\r\n"), []byte("\n")), old: plainEnds(old)}
	s.cuts = make([]int32, 0, len(file)-len(s.plain))
	for at := range offsets(file, "\r\n") {
		s.cuts = append(s.cuts, int32(at-len(s.cuts)))
	}
	return s
}

// offsets yields the offsets of text in file, without overlaps. A file can contain the text millions of times.
func offsets(file []byte, text string) iter.Seq[int] {
	return func(yield func(at int) bool) {
		for at := 0; ; at += len(text) {
			next := bytes.Index(file[at:], []byte(text))
			if at += next; next < 0 || !yield(at) {
				return
			}
		}
	}
}

// plainEnds returns text with CR LF replaced by LF.
func plainEnds(text string) string { return strings.ReplaceAll(text, "\r\n", "\n") }

// Count returns the number of occurrences, without overlaps.
func (s *textSearch) Count() int { return bytes.Count(s.plain, []byte(s.old)) }

// Lines returns the line numbers of the first occurrences, counted from 1. It returns at most most numbers.
func (s *textSearch) Lines(most int) []int64 {
	var lines []int64
	line, from := int64(1), 0
	for at := range offsets(s.plain, s.old) {
		line += int64(bytes.Count(s.plain[from:at], []byte("\n")))
		lines, from = append(lines, line), at
		if len(lines) == most {
			break
		}
	}
	return lines
}

// Near returns the number of the first line at which the file matches the text if white space around lines is ignored.
// It returns zero if the file has no such match.
func (s *textSearch) Near() int {
	trimmed := func(text []byte) []byte {
		out := append(make([]byte, 0, len(text)+2), '\n')
		for line := range bytes.SplitSeq(text, []byte("\n")) {
			out = append(append(out, bytes.TrimSpace(line)...), '\n')
		}
		return out
	}
	want := strings.Trim(s.old, "\n")
	if strings.TrimSpace(want) == "" {
		return 0
	}
	all := trimmed(s.plain)
	at := bytes.Index(all, trimmed([]byte(want)))
	return bytes.Count(all[:at+1], []byte("\n"))
}

// Replace returns the file with every occurrence replaced by with. It converts line ends in with to the line ends of
// the replaced text, or of the file if the replaced text has none. If the result would exceed limit bytes, Replace
// returns errTextTooLarge before it builds the result.
func (s *textSearch) Replace(with string, limit int) ([]byte, error) {
	var out bytes.Buffer
	fileEnds, from := withEnds(with, s.file), 0
	for at := range offsets(s.plain, s.old) {
		first, end := s.offset(at), s.offset(at+len(s.old))
		text := fileEnds
		if bytes.ContainsRune(s.file[first:end], '\n') {
			text = withEnds(with, s.file[first:end])
		}
		out.Write(s.file[from:first])
		out.WriteString(text)
		if from = end; out.Len()+len(s.file)-from > limit {
			return nil, errTextTooLarge
		}
	}
	out.Write(s.file[from:])
	return out.Bytes(), nil
}

// offset converts an offset in plain to an offset in file.
func (s *textSearch) offset(plain int) int {
	before, _ := slices.BinarySearch(s.cuts, int32(plain))
	return plain + before
}

// withEnds returns text with the line ends of most lines of model. If model has no line ends, withEnds returns text
// unchanged.
func withEnds(text string, model []byte) string {
	all, crlf := bytes.Count(model, []byte("\n")), bytes.Count(model, []byte("\r\n"))
	switch {
	case all == 0:
		return text
	case 2*crlf > all:
		return strings.ReplaceAll(plainEnds(text), "\n", "\r\n")
	}
	return plainEnds(text)
}
