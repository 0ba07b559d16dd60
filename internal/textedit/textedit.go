// Package textedit searches and replaces text in a file whose line ends may be CR LF, to which those of the text need not be
// the same.
package textedit

import (
	"bytes"
	"errors"
	"slices"
	"strings"
)

// ErrTooLarge is returned when a file would get larger than it may.
var ErrTooLarge = errors.New("the file would be too large")

// Search is where a text occurs in a file. CR LF and LF are one kind of line end to it; everything else is compared exactly.
type Search struct {
	file  []byte
	plain []byte // the file with LF for CR LF
	cuts  []int  // offsets in plain of the line ends that lost a CR
	old   string // the text, with LF for CR LF
	found []int  // offsets in plain at which it begins, without overlaps
}

// Find looks for a text that is not empty.
func Find(file []byte, old string) *Search {
	s := &Search{file: file, plain: file, old: plainEnds(old)}
	if bytes.Contains(file, []byte("\r\n")) {
		s.plain = make([]byte, 0, len(file))
		for rest := file; len(rest) > 0; {
			line, after, more := bytes.Cut(rest, []byte("\r\n"))
			s.plain = append(s.plain, line...)
			if more {
				s.cuts = append(s.cuts, len(s.plain))
				s.plain = append(s.plain, '\n')
			}
			rest = after
		}
	}
	for at := 0; ; at += len(s.old) {
		next := bytes.Index(s.plain[at:], []byte(s.old))
		if next < 0 {
			return s
		}
		at += next
		s.found = append(s.found, at)
	}
}

// plainEnds returns a text with LF for CR LF.
func plainEnds(text string) string { return strings.ReplaceAll(text, "\r\n", "\n") }

// Count returns how often the text occurs, without overlaps.
func (s *Search) Count() int { return len(s.found) }

// Lines returns the numbers, counted from 1, of the lines at which the first occurrences begin, at most so many.
func (s *Search) Lines(most int) []int64 {
	var lines []int64
	line, from := int64(1), 0
	for _, at := range s.found[:min(len(s.found), most)] {
		line += int64(bytes.Count(s.plain[from:at], []byte("\n")))
		lines, from = append(lines, line), at
	}
	return lines
}

// Near returns the number of the line at which the file has the lines of the text but for white space around them; zero when it
// has them nowhere.
func (s *Search) Near() int {
	trimmed := func(text string) string {
		lines := strings.Split(text, "\n")
		for i, line := range lines {
			lines[i] = strings.TrimSpace(line)
		}
		return "\n" + strings.Join(lines, "\n") + "\n"
	}
	want := strings.Trim(s.old, "\n")
	if strings.TrimSpace(want) == "" {
		return 0
	}
	all := trimmed(string(s.plain))
	at := strings.Index(all, trimmed(want))
	return strings.Count(all[:at+1], "\n")
}

// Replace returns the file with another text in the place of every occurrence. The line ends of that become those of what it
// replaces, or where that has none those of the file. More than limit bytes are ErrTooLarge, before they are made.
func (s *Search) Replace(with string, limit int) ([]byte, error) {
	var out bytes.Buffer
	fileEnds, from := withEnds(with, s.file), 0
	for _, at := range s.found {
		first, end := s.offset(at), s.offset(at+len(s.old))
		text := fileEnds
		if bytes.ContainsRune(s.file[first:end], '\n') {
			text = withEnds(with, s.file[first:end])
		}
		out.Write(s.file[from:first])
		out.WriteString(text)
		if from = end; out.Len()+len(s.file)-from > limit {
			return nil, ErrTooLarge
		}
	}
	out.Write(s.file[from:])
	return out.Bytes(), nil
}

// offset returns where in the file an offset of plain is.
func (s *Search) offset(plain int) int {
	before, _ := slices.BinarySearch(s.cuts, plain)
	return plain + before
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
