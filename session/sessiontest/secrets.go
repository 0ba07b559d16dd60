package sessiontest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

// Secrets puts a secret everywhere a user may and looks for it everywhere else: in spans, logs, errors and in what
// describe returns the engine's description of the sandbox; nil where there is no engine.
func Secrets(t *testing.T, b backend.SandboxBackend, describe func(ctx context.Context, id string) (string, error), req session.Request) {
	t.Helper()
	const secret = "c4n4ry-5ecret"
	exporter := tracetest.NewInMemoryExporter()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	var log syncBuffer
	m, err := session.NewManager(b, &session.Options{TracerProvider: tp, Logger: slog.New(slog.NewJSONHandler(&log, nil)), MaxFileBytes: 1 << 20})
	must(t, err)
	defer func() { must(t, errors.Join(m.Close(context.Background()), tp.Shutdown(context.Background()))) }()
	req.Env = map[string]string{"TOKEN": secret}
	s, _, err := m.Open(t.Context(), session.WorkflowKey("run_1", "default"), req)
	must(t, err)
	ctx := t.Context()
	var errs []error
	res, err := s.Exec(ctx, session.ExecRequest{Argv: []string{"/bin/sh", "-c", "cat; echo $TOKEN $OTHER $0", secret},
		Stdin: []byte(secret), Env: map[string]string{"OTHER": secret}})
	must(t, err)
	if got := strings.Count(string(res.Stdout.Bytes()), secret); got != 4 {
		t.Errorf("the command saw the secret %d times, want 4: %q", got, res.Stdout.Bytes())
	}
	_, err = s.WriteFile(ctx, "file", strings.NewReader(secret), session.WriteFileOptions{})
	must(t, err)
	fails := func(_ any, err error) {
		t.Helper()
		if err == nil {
			t.Error("a call that must fail did not")
		}
		errs = append(errs, err)
	}
	fails(s.Exec(ctx, session.ExecRequest{Argv: []string{"no-such-program", secret}}))
	fails(s.Exec(ctx, session.ExecRequest{Argv: []string{"true"}, Env: map[string]string{"A": secret + "\x00"}}))
	fails(s.Exec(ctx, session.ExecRequest{Argv: []string{"true"}, Env: map[string]string{"WORKCELL_EXEC": secret}}))
	fails(s.Exec(ctx, session.ExecRequest{Command: secret, Timeout: 1}))
	fails(s.WriteFile(ctx, "file", strings.NewReader(secret), session.WriteFileOptions{}))
	fails(s.WriteFile(ctx, "big", strings.NewReader(strings.Repeat(secret, 1<<17)), session.WriteFileOptions{}))
	fails(s.Stream(ctx, session.ExecRequest{Command: "cat"}, session.Streams{Stdin: &failing{strings.NewReader(secret), errors.New("host")}}))
	cancelled, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	fails(s.Exec(cancelled, session.ExecRequest{Command: "echo " + secret + "; sleep 60"}))
	_, _, err = m.Open(ctx, s.Key(), session.Request{Image: req.Image, Env: map[string]string{"TOKEN": secret + "2"}})
	fails(nil, err)
	info := s.Info()
	described := ""
	if describe != nil {
		described, err = describe(ctx, info.EngineID)
		must(t, err)
		if described == "" {
			t.Error("the engine does not describe the sandbox")
		}
	}
	must(t, s.Close(ctx))
	for name, text := range map[string]string{
		"the engine's words": described, "spans": fmt.Sprintf("%+v", exporter.GetSpans()), "log": log.String(), "errors": errors.Join(errs...).Error(), "info": fmt.Sprintf("%+v", info),
	} {
		if strings.Contains(text, secret) {
			at := strings.Index(text, secret)
			t.Errorf("%s hold the secret: …%s…", name, text[max(0, at-200):min(len(text), at+40)])
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// syncBuffer is a buffer that may be written to concurrently.
type syncBuffer struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
