package mcpserver

import (
	"context"
	"log/slog"
)

// quiet returns a logger for the SDK. What the SDK logs as errors are mostly mistakes of clients, who could fill an
// operator's log with them.
func quiet(l *slog.Logger) *slog.Logger { return slog.New(quietHandler{l.Handler()}) }

// quietHandler makes everything a debugging message.
type quietHandler struct{ slog.Handler }

func (h quietHandler) Enabled(ctx context.Context, _ slog.Level) bool {
	return h.Handler.Enabled(ctx, slog.LevelDebug)
}

func (h quietHandler) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return h.Handler.Handle(ctx, r)
}

func (h quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return quietHandler{h.Handler.WithAttrs(attrs)}
}

func (h quietHandler) WithGroup(name string) slog.Handler {
	return quietHandler{h.Handler.WithGroup(name)}
}
