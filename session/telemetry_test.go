//go:build linux

package session_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

// spanRecorder returns a provider and the exporter that keeps its spans.
func spanRecorder(t testing.TB) (*tracetest.InMemoryExporter, *sdktrace.TracerProvider) {
	exporter := tracetest.NewInMemoryExporter()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))
	t.Cleanup(func() { must(t, tp.Shutdown(context.Background())) })
	return exporter, tp
}

// everyCall makes each kind of call once, in this order.
func everyCall(t testing.TB, ctx context.Context, m *session.Manager, key session.Key) *session.Session {
	t.Helper()
	s, _, err := m.Open(ctx, key, testImage())
	must(t, err)
	res, err := s.Exec(ctx, sandbox.ExecRequest{Command: "cat; exit 3", StdinOpen: true, Background: true})
	must(t, err)
	must(t, s.Command(res.ExecID).Write(ctx, []byte("input"), true))
	_, err = s.Command(res.ExecID).Wait(ctx, -1)
	must(t, err)
	_, err = s.Command(res.ExecID).Read(ctx, sandbox.ReadRequest{})
	must(t, err)
	_, err = s.Command(res.ExecID).Signal(ctx, "")
	must(t, err)
	_, err = s.Stream(ctx, sandbox.ExecRequest{Command: "cat"}, sandbox.Streams{Stdin: strings.NewReader("x")})
	must(t, err)
	_, err = s.WriteFile(ctx, "dir/file", strings.NewReader("contents"), sandbox.WriteFileOptions{})
	must(t, err)
	_, err = s.ReadFile(ctx, "dir/file", io.Discard, sandbox.ReadFileOptions{})
	must(t, err)
	_, err = s.ListFiles(ctx, ".", sandbox.ListFilesOptions{})
	must(t, err)
	_, err = s.StatFile(ctx, "dir")
	must(t, err)
	_, err = s.MakeDir(ctx, "other", 0)
	must(t, err)
	all := func(string) bool { return true }
	_, _, err = s.ReadTree(ctx, all, all)
	must(t, err)
	_, err = s.Diff(ctx, patch.Tree{})
	must(t, err)
	must(t, s.RenameFile(ctx, "dir/file", "other/file", false))
	_, err = s.RemoveFile(ctx, "other", true)
	must(t, err)
	must(t, s.Close(ctx))
	return s
}

var must = checktest.Must

func TestSpans(t *testing.T) {
	t.Parallel()
	exporter, tp := spanRecorder(t)
	m := newManager(t, newEngine(t), &session.Options{TracerProvider: tp})
	ctx, root := tp.Tracer("test").Start(t.Context(), "root")
	s := everyCall(t, ctx, m, session.WorkflowKey("run_1", "default"))
	root.End()
	var names []string
	bySpan := map[string]tracetest.SpanStub{}
	for _, span := range exporter.GetSpans() {
		if span.Name == "root" {
			continue
		}
		names = append(names, span.Name)
		bySpan[span.Name] = span
		if span.Parent.SpanID() != root.SpanContext().SpanID() || span.Status.Code != codes.Unset {
			t.Errorf("%s: parent %v, status %+v", span.Name, span.Parent.SpanID(), span.Status)
		}
		attrs := attributes(span)
		for key, want := range map[attribute.Key]string{
			telemetry.KeyRunID: "run_1", telemetry.KeySandboxID: s.ID(), telemetry.KeySandboxKey: s.Key().String(),
			telemetry.KeyBackend: "processes", telemetry.KeyImage: "test:1",
		} {
			if attrs[key] != want {
				t.Errorf("%s: %s is %q, want %q", span.Name, key, attrs[key], want)
			}
		}
	}
	want := []string{
		"session.Open", "session.Exec", "session.WriteExec", "session.WaitExec", "session.ReadExec", "session.KillExec",
		"session.Stream", "session.WriteFile", "session.ReadFile", "session.ListFiles", "session.StatFile", "session.MakeDir",
		"session.ReadTree", "session.Diff", "session.RenameFile", "session.RemoveFile", "session.Close",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("spans (-want +got):\n%s", diff)
	}
	exec := attributes(bySpan["session.Exec"])
	for _, test := range []struct {
		span string
		key  attribute.Key
		want string
	}{
		{"session.Open", telemetry.KeyCreated, "true"},
		{"session.Exec", telemetry.KeyExecStatus, "running"},
		{"session.WriteExec", telemetry.KeyStdinBytes, "5"},
		{"session.WaitExec", telemetry.KeyExitCode, "3"},
		{"session.WaitExec", telemetry.KeyExecStatus, "completed"},
		{"session.WaitExec", telemetry.KeyExecID, exec[telemetry.KeyExecID]},
		{"session.ReadExec", telemetry.KeyChunks, "1"},
		{"session.ReadExec", telemetry.KeyStdoutBytes, "5"},
		{"session.WriteFile", telemetry.KeyFileBytes, "8"},
		{"session.ReadFile", telemetry.KeyFileBytes, "8"},
		{"session.RemoveFile", telemetry.KeyEntries, "2"},
	} {
		if got := attributes(bySpan[test.span])[test.key]; got != test.want {
			t.Errorf("%s: %s is %q, want %q", test.span, test.key, got, test.want)
		}
	}
	for _, name := range []string{"session.WaitExec", "session.ReadExec", "session.WriteExec", "session.KillExec"} {
		links := bySpan[name].Links
		if len(links) != 1 || links[0].SpanContext.SpanID() != bySpan["session.Exec"].SpanContext.SpanID() {
			t.Errorf("%s is not linked to the span that started the command: %v", name, links)
		}
	}
}

// attributes returns a span's attributes as text.
func attributes(span tracetest.SpanStub) map[attribute.Key]string {
	attrs := map[attribute.Key]string{}
	for _, kv := range span.Attributes {
		attrs[kv.Key] = kv.Value.String()
	}
	return attrs
}

// TestSpanEvents verifies that the span of a call has an event for the end of a command or sandbox.
func TestSpanEvents(t *testing.T) {
	t.Parallel()
	exporter, tp := spanRecorder(t)
	m := newManager(t, newEngine(t), &session.Options{TracerProvider: tp})
	s := mustOpen(t, m, session.WorkflowKey("run_1", "default"))
	run(t, s, sandbox.ExecRequest{Argv: []string{"sleep", "1000"}, Timeout: 50 * time.Millisecond})
	run(t, s, sandbox.ExecRequest{Command: "exit 3"})
	must(t, s.Close(t.Context()))
	if _, _, err := m.Open(t.Context(), session.WorkflowKey("run_2", "default"), session.Request{Image: "test:1", User: "root"}); !errors.Is(err, backend.ErrPermission) {
		t.Errorf("root: %v", err)
	}
	var got []string
	for _, span := range exporter.GetSpans() {
		line := span.Name
		for _, e := range span.Events {
			line += " " + e.Name
			for _, kv := range e.Attributes {
				line += " " + kv.Value.String()
			}
		}
		got = append(got, line+" "+attributes(span)[semconv.ProcessExitCode]+attributes(span)[semconv.ContainerRuntime])
	}
	want := []string{"session.Open processes", "session.Exec workcell.timeout ", "session.Exec 3", "session.Close workcell.removed closed ",
		"session.Open workcell.refused root "}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("spans and their events (-want +got)\n%s", diff)
	}
}

func TestFailedSpans(t *testing.T) {
	t.Parallel()
	exporter, tp := spanRecorder(t)
	e := newEngine(t)
	m := newManager(t, e, &session.Options{TracerProvider: tp})
	s := mustOpen(t, m, session.WorkflowKey("run_1", "default"))
	exporter.Reset()
	_, missing := s.StatFile(t.Context(), "missing")
	run(t, s, sandbox.ExecRequest{Command: "exit 1"})
	for _, err := range append(s.KillCommands(t.Context(), []string{"unknown"}), missing) {
		if !errors.Is(err, backend.ErrNotFound) {
			t.Errorf("%v, want ErrNotFound", err)
		}
	}
	e.setHooks(func(context.Context, backend.Spec) error { return fmt.Errorf("%w: text", backend.ErrImage) }, nil, nil)
	refuses(t, m, session.WorkflowKey("run_1", "other"), testImage(), backend.ErrImage)
	e.setHooks(nil, nil, nil)
	for i, want := range []string{"not_found", "", "not_found", "image"} {
		span := exporter.GetSpans()[i]
		if span.Status.Description != want || attributes(span)[semconv.ErrorType] != want || (want != "") != (span.Status.Code == codes.Error) {
			t.Errorf("%s: status %+v, attributes %v", span.Name, span.Status, attributes(span))
		}
		if len(span.Events) != 0 {
			t.Errorf("%s has events %v", span.Name, span.Events)
		}
	}
}

func TestTraceReachesCommands(t *testing.T) {
	t.Parallel()
	exporter, tp := spanRecorder(t)
	m := newManager(t, newEngine(t), &session.Options{TracerProvider: tp})
	s := mustOpen(t, m, session.WorkflowKey("run_1", "default"))
	got := output(t, s, "echo $TRACEPARENT")
	spans := exporter.GetSpans()
	sc := spans[len(spans)-1].SpanContext
	if want := fmt.Sprintf("00-%s-%s-01\n", sc.TraceID(), sc.SpanID()); got != want {
		t.Errorf("TRACEPARENT is %q, want that of session.Exec, %q", got, want)
	}
	res, err := s.Exec(t.Context(), sandbox.ExecRequest{Command: "echo $TRACEPARENT", Env: map[string]string{"TRACEPARENT": "mine"}})
	if err != nil || string(res.Stdout.Bytes()) != "mine\n" {
		t.Errorf("a request's own TRACEPARENT became %q, %v", res.Stdout.Bytes(), err)
	}
}

// TestSecretsStayInside puts a secret everywhere a user may, and verifies that it does not appear in spans, logs, or
// errors.
func TestSecretsStayInside(t *testing.T) {
	t.Parallel()
	const secret = "c4n4ry-5ecret"
	exporter, tp := spanRecorder(t)
	var log logBuffer
	m := newManager(t, newEngine(t), &session.Options{TracerProvider: tp, Logger: log.logger(), MaxFileBytes: 1 << 20})
	req := testImage()
	req.Env = map[string]string{"TOKEN": secret}
	s := openAs(t, m, session.WorkflowKey("run_1", "default"), req)
	ctx := t.Context()
	var errs []error
	res, err := s.Exec(ctx, sandbox.ExecRequest{Argv: []string{"/bin/sh", "-c", "cat; echo $TOKEN $OTHER $0", secret},
		Stdin: []byte(secret), Env: map[string]string{"OTHER": secret}})
	must(t, err)
	if got := strings.Count(string(res.Stdout.Bytes()), secret); got != 4 {
		t.Errorf("the command saw the secret %d times, want 4: %q", got, res.Stdout.Bytes())
	}
	_, err = s.WriteFile(ctx, "file", strings.NewReader(secret), sandbox.WriteFileOptions{})
	must(t, err)
	fails := func(_ any, err error) {
		t.Helper()
		if err == nil {
			t.Error("a call that must fail did not")
		}
		errs = append(errs, err)
	}
	fails(s.Exec(ctx, sandbox.ExecRequest{Argv: []string{"no-such-program", secret}}))
	fails(s.Exec(ctx, sandbox.ExecRequest{Argv: []string{"true"}, Env: map[string]string{"A": secret + "\x00"}}))
	fails(s.Exec(ctx, sandbox.ExecRequest{Argv: []string{"true"}, Env: map[string]string{"WORKCELL_EXEC": secret}}))
	fails(s.Exec(ctx, sandbox.ExecRequest{Command: secret, Timeout: 1}))
	fails(s.WriteFile(ctx, "file", strings.NewReader(secret), sandbox.WriteFileOptions{}))
	fails(s.WriteFile(ctx, "big", strings.NewReader(strings.Repeat(secret, 1<<17)), sandbox.WriteFileOptions{}))
	fails(s.Stream(ctx, sandbox.ExecRequest{Command: "cat"}, sandbox.Streams{Stdin: io.MultiReader(strings.NewReader(secret), iotest.ErrReader(errors.New("host")))}))
	cancelled, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	fails(s.Exec(cancelled, sandbox.ExecRequest{Command: "echo " + secret + "; sleep 60"}))
	_, _, err = m.Open(ctx, s.Key(), session.Request{Image: req.Image, Env: map[string]string{"TOKEN": secret + "2"}})
	fails(nil, err)
	info := s.Info()
	must(t, s.Close(ctx))
	for name, text := range map[string]string{
		"spans": fmt.Sprintf("%+v", exporter.GetSpans()), "log": log.String(), "errors": errors.Join(errs...).Error(), "info": fmt.Sprintf("%+v", info),
	} {
		if strings.Contains(text, secret) {
			at := strings.Index(text, secret)
			t.Errorf("%s hold the secret: …%s…", name, text[max(0, at-200):min(len(text), at+40)])
		}
	}
}
