package otelsetup

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// lineLog prints warnings and errors in the format of the command's other lines on standard error: the event, and then
// its cause.
type lineLog struct {
	mu    *sync.Mutex // guards w; shared by all derived loggers
	w     io.Writer
	attrs []slog.Attr
}

// NewLog returns a log for the operator. It prints warnings and errors to w, one line each.
func NewLog(w io.Writer) *slog.Logger { return slog.New(&lineLog{mu: &sync.Mutex{}, w: w}) }

// Enabled reports whether a record is a warning or an error.
func (l *lineLog) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

// WithAttrs returns a log with additional attributes in each record.
func (l *lineLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &lineLog{l.mu, l.w, append(slices.Clip(l.attrs), attrs...)}
}

// WithGroup ignores groups, because equal names in different groups are rare.
func (l *lineLog) WithGroup(string) slog.Handler { return l }

// Handle prints one line.
func (l *lineLog) Handle(_ context.Context, r slog.Record) error {
	word, why := "warning", ""
	if r.Level >= slog.LevelError {
		word = "error"
	}
	var about []string
	add := func(a slog.Attr) bool {
		if text := a.Value.Resolve().String(); a.Key == "error" {
			why = ": " + text
		} else {
			about = append(about, a.Key+" "+text)
		}
		return true
	}
	for _, a := range l.attrs {
		add(a)
	}
	r.Attrs(add)
	line := r.Message
	if len(about) > 0 {
		line += " (" + strings.Join(about, ", ") + ")"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := fmt.Fprintf(l.w, "workcell: %s: %s\n", word, sanitize.Line(line+why))
	return err
}
