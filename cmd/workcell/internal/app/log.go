package app

import (
	"fmt"
	"log/slog"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/otelsetup"
	"github.com/workcell-dev/workcell/internal/sanitize"
)

// Notice prints a status line to standard error. It sanitizes the text, which may come from a sandbox.
func (a *App) Notice(format string, args ...any) {
	fmt.Fprintf(a.opts.Stderr, "workcell: %s\n", sanitize.Line(fmt.Sprintf(format, args...)))
}

// Logger logs messages for the operator to standard error.
func (a *App) Logger() *slog.Logger {
	if a.opts.Env.Get("WORKCELL_DEBUG") != "" {
		return slog.New(slog.NewTextHandler(a.opts.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	return otelsetup.NewLog(a.opts.Stderr)
}
