package runtrace

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/workcell-dev/workcell/internal/checktest"
)

// record creates a trace of three spans, stored in dir by a recorder.
func record(t *testing.T, r *Recorder, dir string) (traceID string) {
	t.Helper()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(r.Exporter()))
	tracer := provider.Tracer("test")
	ctx, root := tracer.Start(t.Context(), "invoke_workflow <w>")
	root.SetAttributes(attribute.String("gen_ai.operation.name", "invoke_workflow"))
	ctx, inner := tracer.Start(ctx, "generate") // an internal span of Genkit
	_, chat := tracer.Start(ctx, "chat m")
	chat.SetAttributes(attribute.String("gen_ai.operation.name", "chat"), attribute.Int("gen_ai.usage.input_tokens", 7),
		attribute.Int("gen_ai.usage.output_tokens", 2), attribute.StringSlice("gen_ai.response.finish_reasons", []string{"stop"}))
	chat.SetStatus(codes.Error, "")
	chat.SetAttributes(attribute.String("error.type", "timeout"))
	chat.AddEvent("workcell.oom_kill")
	chat.End() // before the file is known
	if !r.Keep(dir) && !errors.Is(r.err, errFull) {
		t.Error("nothing is kept")
	}
	inner.End()
	root.End()
	if err := provider.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	return root.SpanContext().TraceID().String()
}

func read(t *testing.T, dir string) []*Trace {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(dir, FileName))
	checktest.Must(t, err)
	traces, err := Read(bytes.NewReader(raw))
	checktest.Must(t, err)
	return traces
}

// TestKeepAndDraw verifies that the file contains all spans, including spans from before the file was known, and
// that they are drawn.
func TestKeepAndDraw(t *testing.T) {
	t.Parallel()
	dir, r := filepath.Join(t.TempDir(), "runs", "run_1"), &Recorder{}
	id := record(t, r, dir)
	checktest.Must(t, r.Close())
	traces := read(t, dir)
	if len(traces) != 1 || traces[0].ID != id || traces[0].Spans != 3 || len(traces[0].Roots) != 1 {
		t.Fatalf("traces %+v", traces)
	}
	chat := traces[0].Roots[0].Children[0].Children[0]
	if chat.Name != "chat m" || !chat.Failed || chat.Attributes["gen_ai.response.finish_reasons"] != "stop" || len(chat.Events) != 1 {
		t.Errorf("span %+v", chat)
	}
	var text, svg strings.Builder
	checktest.Must(t, errors.Join(traces[0].Text(&text, Options{Width: 100}), traces[0].SVG(&svg, "a & b", Options{})))
	for _, want := range []string{"trace " + id + ": ", "0 agent runs, 1 model call, 0 tool calls, 7 tokens in, 2 out\n", "\ninvoke_workflow <w> ", "\n└ chat m 7→2 tokens ✗ timeout ! oom_kill"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, text.String())
		}
	}
	if strings.Contains(text.String(), "generate") {
		t.Errorf("the short form shows spans inside Genkit:\n%s", text.String())
	}
	text.Reset()
	if err := traces[0].Text(&text, Options{All: true, Width: 100}); err != nil || !strings.Contains(text.String(), "\n└ generate") {
		t.Errorf("%v, all spans:\n%s", err, text.String())
	}
	if !strings.Contains(svg.String(), "invoke_workflow &lt;w&gt;") || !strings.Contains(svg.String(), "a &amp; b") {
		t.Errorf("the picture:\n%s", svg.String())
	}
	for d := xml.NewDecoder(strings.NewReader(svg.String())); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is no XML: %v", err)
		}
	}
}

// TestResumedRun verifies that a second process appends to the file, even after an incomplete line of a killed process.
func TestResumedRun(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := &Recorder{}
	one := record(t, first, dir)
	checktest.Must(t, first.Close())
	path := filepath.Join(dir, FileName)
	raw, err := os.ReadFile(path)
	checktest.Must(t, err)
	checktest.Must(t, os.WriteFile(path, append(raw, raw[:len(raw)/4]...), 0o600))
	second := &Recorder{}
	two := record(t, second, dir)
	checktest.Must(t, second.Close())
	traces := read(t, dir)
	if len(traces) != 2 || traces[0].ID != one || traces[1].ID != two {
		t.Errorf("%d traces", len(traces))
	}
	all, err := os.Open(path)
	checktest.Must(t, err)
	defer all.Close()
	doc, err := Document(all)
	if err != nil || bytes.Count(doc, []byte("\n")) != 1 || !bytes.Contains(doc, []byte(`"traceId":"`+two+`"`)) {
		t.Errorf("%v, document %.200s", err, doc)
	}
}

// TestFileIsBounded verifies that spans above the limit cause an error, and stored spans remain.
func TestFileIsBounded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	checktest.Must(t, os.WriteFile(filepath.Join(dir, FileName), bytes.Repeat([]byte("x"), maxBytes-10), 0o600))
	r := &Recorder{}
	record(t, r, dir)
	if err := r.Close(); !errors.Is(err, errFull) {
		t.Errorf("error %v", err)
	}
	if st, err := os.Stat(filepath.Join(dir, FileName)); err != nil || st.Size() > maxBytes {
		t.Errorf("%v, %v", st, err)
	}
}

// FuzzRead verifies for any file content that reading and drawing end, and names are escaped for the terminal.
func FuzzRead(f *testing.F) {
	span := func(id, parent, name string) string {
		return fmt.Sprintf(`{"traceId":"0123456789abcdef0123456789abcdef","spanId":%q,"parentSpanId":%q,"name":%q,"startTimeUnixNano":"1","endTimeUnixNano":"5"}`, id, parent, name)
	}
	line := func(spans ...string) string {
		return `{"resourceSpans":[{"scopeSpans":[{"spans":[` + strings.Join(spans, ",") + `]}]}]}` + "\n"
	}
	f.Add([]byte(line(span("0000000000000001", "", "a\x1b[2J"), span("0000000000000002", "0000000000000001", "chat"))))
	f.Add([]byte(line(span("0000000000000001", "0000000000000002", "a"), span("0000000000000002", "0000000000000001", "b"))))
	f.Add([]byte(line(span("0000000000000001", "0000000000000001", "self"), span("0000000000000001", "", "twice"))))
	var deep []string
	for i := range 60 {
		deep = append(deep, span(fmt.Sprintf("%016x", i+1), fmt.Sprintf("%016x", i), "deep"))
	}
	f.Add([]byte(line(deep...)))
	f.Add([]byte("{}\n{\"resourceSpans\":[{}]}\nx"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		traces, err := Read(bytes.NewReader(raw))
		if err != nil {
			return
		}
		for _, trace := range traces {
			var text, svg strings.Builder
			seen := 0
			trace.each(func(*Span, []bool) { seen++ }, true)
			if seen != trace.Spans {
				t.Errorf("%d of %d spans are in the tree", seen, trace.Spans)
			}
			if err := errors.Join(trace.Text(&text, Options{All: true}), trace.SVG(&svg, "", Options{All: true})); err != nil {
				t.Error(err)
			}
			if strings.Contains(text.String()+svg.String(), "\x1b") {
				t.Errorf("an escape sequence: %q", text.String())
			}
		}
	})
}
