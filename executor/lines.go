package executor

import (
	"bytes"
	"strings"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// Limits for the output of a CLI.
const (
	maxLine    = 8 << 20 // maximum length of a parsed line
	stderrTail = 4 << 10
)

// lineWriter calls line for each line written to it, without the line end. For a line longer than maxLine, it passes
// only the beginning and sets cut.
type lineWriter struct {
	line func(line []byte, cut bool) error
	buf  []byte
	over bool // skip the rest of the line
}

func (w *lineWriter) Write(p []byte) (int, error) {
	n := len(p)
	for {
		part, rest, ended := bytes.Cut(p, []byte{'\n'})
		if room := maxLine - len(w.buf); len(part) > room {
			part, w.over = part[:room], true
		}
		if !w.over || len(w.buf) < maxLine {
			w.buf = append(w.buf, part...)
		}
		if !ended {
			return n, nil
		}
		if err := w.flush(); err != nil {
			return 0, err
		}
		p = rest
	}
}

// flush passes on the current line.
func (w *lineWriter) flush() error {
	line, cut := bytes.TrimSuffix(w.buf, []byte{'\r'}), w.over
	w.buf, w.over = w.buf[:0], false
	if cap(w.buf) > 1<<20 {
		w.buf = nil
	}
	return w.line(line, cut)
}

// end passes on a last line without a line end.
func (w *lineWriter) end() error {
	if len(w.buf) == 0 {
		return nil
	}
	return w.flush()
}

// tail keeps the last stderrTail written bytes.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p[max(0, len(p)-stderrTail):]...)
	t.b = t.b[max(0, len(t.b)-stderrTail):]
	return len(p), nil
}

// String returns the last output, safe for messages and at most stderrTail bytes long.
func (t *tail) String() string {
	text := strings.TrimSpace(sanitize.Text(string(t.b)))
	return strings.ToValidUTF8(text[max(0, len(text)-stderrTail):], "")
}
