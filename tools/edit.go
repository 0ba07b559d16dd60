package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/sanitize"
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
		e := newEdit(old, in.OldString)
		out.Matches, out.Lines = int64(len(e.found)), e.lines()
		if fail := e.ambiguous(in); fail != nil {
			return nil, fail
		}
		data, err := e.replace(*in.NewString)
		if err == nil && b.check != nil {
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
		known = toolspec.ErrorOf(err).WithRemediation("Wait until what writes to the file has ended, then call again.")
		known.Retryable = true
		return out, known
	}
	out.OK, out.Path, out.SizeBytes = true, absolute(s, info.Path), info.Size
	return out, err
}

// edit is a search in a file, to which CR LF and LF are one kind of line end.
type edit struct {
	text  []byte // the file
	plain []byte // the file with LF for CR LF
	cuts  []int  // offsets in plain of the line ends that lost a CR
	old   string // what was searched for, with LF for CR LF
	found []int  // offsets in plain at which it begins, without overlaps
}

func newEdit(text []byte, old string) *edit {
	e := &edit{text: text, plain: text, old: plainEnds(old)}
	if bytes.Contains(text, []byte("\r\n")) {
		e.plain = make([]byte, 0, len(text))
		for rest := text; len(rest) > 0; {
			line, after, more := bytes.Cut(rest, []byte("\r\n"))
			e.plain = append(e.plain, line...)
			if more {
				e.cuts = append(e.cuts, len(e.plain))
				e.plain = append(e.plain, '\n')
			}
			rest = after
		}
	}
	for at := 0; ; at += len(e.old) {
		next := bytes.Index(e.plain[at:], []byte(e.old))
		if next < 0 {
			return e
		}
		at += next
		e.found = append(e.found, at)
	}
}

// plainEnds returns a text with LF for CR LF.
func plainEnds(text string) string { return strings.ReplaceAll(text, "\r\n", "\n") }

// offset returns where in the file an offset of plain is.
func (e *edit) offset(plain int) int {
	before, _ := slices.BinarySearch(e.cuts, plain)
	return plain + before
}

// lines returns the numbers of the lines at which the first matches begin.
func (e *edit) lines() []int64 {
	var lines []int64
	line, from := int64(1), 0
	for _, at := range e.found[:min(len(e.found), maxEditLines)] {
		line += int64(bytes.Count(e.plain[from:at], []byte("\n")))
		lines, from = append(lines, line), at
	}
	return lines
}

// ambiguous returns what to tell a caller whose text does not occur as often as it must; nil when it does.
func (e *edit) ambiguous(in fsEditInput) *toolspec.Error {
	name, n := sanitize.Clip(in.Path), len(e.found)
	switch {
	case n == 1 || n > 0 && in.ReplaceAll:
		return nil
	case n > 0:
		return toolspec.Failf(toolspec.CodeInvalid, "old_string occurs %d times in %s, at lines %s", n, name, e.places()).
			WithRemediation("Add lines around it to old_string until it occurs once, or pass replace_all: true.")
	}
	fail := toolspec.Failf(toolspec.CodeInvalid, "old_string occurs 0 times in %s", name).
		WithRemediation("Read the file with sandbox_fs_read and copy the text exactly, with its white space.")
	if line := e.near(); line > 0 {
		fail.Message += fmt.Sprintf("; the lines from %d on differ from it in white space alone", line)
	}
	return fail
}

// places lists the lines of the matches.
func (e *edit) places() string {
	text := strings.Trim(strings.ReplaceAll(fmt.Sprint(e.lines()), " ", ", "), "[]")
	if more := len(e.found) - maxEditLines; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// near returns the line at which the file has the text but for white space at the ends of lines; zero when nowhere.
func (e *edit) near() int {
	trimmed := func(text string) string {
		lines := strings.Split(text, "\n")
		for i, line := range lines {
			lines[i] = strings.TrimSpace(line)
		}
		return "\n" + strings.Join(lines, "\n") + "\n"
	}
	want := strings.Trim(e.old, "\n")
	if strings.TrimSpace(want) == "" {
		return 0
	}
	all := trimmed(string(e.plain))
	at := strings.Index(all, trimmed(want))
	return strings.Count(all[:at+1], "\n")
}

// replace returns the file with a text in the place of every match. Its line ends become those of what it replaces, or of the
// file where that has none.
func (e *edit) replace(with string) ([]byte, error) {
	var out bytes.Buffer
	from := 0
	for _, at := range e.found {
		first, end := e.offset(at), e.offset(at+len(e.old))
		model := e.text[first:end]
		if !bytes.ContainsRune(model, '\n') {
			model = e.text
		}
		out.Write(e.text[from:first])
		out.WriteString(withEnds(with, model))
		if from = end; out.Len() > maxEdit {
			return nil, toolspec.Failf(toolspec.CodeTooLarge, "the file would get larger than the limit of an edit, %d bytes", maxEdit)
		}
	}
	out.Write(e.text[from:])
	return out.Bytes(), nil
}

// withEnds returns a text with the line ends that most lines of model have. A model without any leaves it as it is.
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
