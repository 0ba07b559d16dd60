package executor

import (
	"bytes"
	"strings"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// Bounds of what a CLI writes.
const (
	maxLine    = 8 << 20 // longest line that is parsed
	stderrTail = 4 << 10
)

// lineWriter calls line for each line that is written to it, without its end. Of one that is longer than maxLine it
// passes on the beginning, with cut set.
type lineWriter struct {
	line func(line []byte, cut bool) error
	buf  []byte
	over bool // the rest of the line is dropped
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

// flush passes on what there is of a line.
func (w *lineWriter) flush() error {
	line, cut := bytes.TrimSuffix(w.buf, []byte{'\r'}), w.over
	w.buf, w.over = w.buf[:0], false
	if cap(w.buf) > 1<<20 {
		w.buf = nil
	}
	return w.line(line, cut)
}

// end passes on a last line without an end.
func (w *lineWriter) end() error {
	if len(w.buf) == 0 {
		return nil
	}
	return w.flush()
}

// tail keeps the last stderrTail bytes of what is written.
type tail struct{ b []byte }

func (t *tail) Write(p []byte) (int, error) {
	t.b = append(t.b, p[max(0, len(p)-stderrTail):]...)
	t.b = t.b[max(0, len(t.b)-stderrTail):]
	return len(p), nil
}

// String returns the end of what was written, fit for a message and no longer than stderrTail.
func (t *tail) String() string {
	text := strings.TrimSpace(sanitize.Text(string(t.b)))
	return strings.ToValidUTF8(text[max(0, len(text)-stderrTail):], "")
}
