package runtrace

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
)

// Trace contains the spans of a run in one process.
type Trace struct {
	ID    string
	Roots []*Span // spans without a stored parent, in order of their start
	Spans int     // number of stored spans, displayed or not
}

// Span is a span of a trace.
type Span struct {
	ID, ParentID string // hexadecimal
	Name         string
	Start, End   time.Time
	Attributes   map[string]string
	Failed       bool
	Events       []string // names, in order
	Children     []*Span  // in order of their start
}

// Document returns all lines of a file as one OTLP JSON document.
func Document(r io.Reader) ([]byte, error) {
	all := &tracepb.TracesData{}
	err := lines(r,
		func(data *tracepb.TracesData) { all.ResourceSpans = append(all.ResourceSpans, data.ResourceSpans...) })
	if err != nil {
		return nil, err
	}
	return marshal(all)
}

// Read returns the traces in a file, in order of their start. A resumed run has several traces. Read skips lines that
// are not OTLP JSON, because a killed process may leave an incomplete line.
func Read(r io.Reader) ([]*Trace, error) {
	byTrace := map[string][]*Span{}
	err := lines(r, func(data *tracepb.TracesData) {
		for _, rs := range data.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				for _, s := range ss.Spans {
					id := hex.EncodeToString(s.TraceId)
					byTrace[id] = append(byTrace[id], spanOf(s))
				}
			}
		}
	})
	if err != nil {
		return nil, err
	}
	if len(byTrace) == 0 {
		return nil, errors.New("no saved spans")
	}
	var traces []*Trace
	for id, spans := range byTrace {
		traces = append(traces, newTrace(id, spans))
	}
	slices.SortFunc(traces, func(a, b *Trace) int { return a.Roots[0].Start.Compare(b.Roots[0].Start) })
	return traces, nil
}

// lines calls fn for the data of every readable line of a file.
func lines(r io.Reader, fn func(*tracepb.TracesData)) error {
	b := bufio.NewReader(io.LimitReader(r, 2*maxBytes))
	for {
		line, err := b.ReadBytes('\n')
		if data, bad := unmarshal(line); bad == nil {
			fn(data)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func spanOf(s *tracepb.Span) *Span {
	out := &Span{
		ID: hex.EncodeToString(s.SpanId), ParentID: hex.EncodeToString(s.ParentSpanId), Name: s.Name,
		Start: time.Unix(0, int64(s.StartTimeUnixNano)), End: time.Unix(0, int64(s.EndTimeUnixNano)),
		Attributes: map[string]string{}, Failed: s.Status.GetCode() == tracepb.Status_STATUS_CODE_ERROR,
	}
	for _, kv := range s.Attributes {
		out.Attributes[kv.Key] = valueOf(kv.Value)
	}
	for _, e := range s.Events {
		out.Events = append(out.Events, e.Name)
	}
	return out
}

func valueOf(v *commonpb.AnyValue) string {
	switch v := v.GetValue().(type) {
	case *commonpb.AnyValue_StringValue:
		return v.StringValue
	case *commonpb.AnyValue_IntValue:
		return strconv.FormatInt(v.IntValue, 10)
	case *commonpb.AnyValue_BoolValue:
		return strconv.FormatBool(v.BoolValue)
	case *commonpb.AnyValue_DoubleValue:
		return fmt.Sprint(v.DoubleValue)
	case *commonpb.AnyValue_ArrayValue:
		var list []string
		for _, e := range v.ArrayValue.Values {
			list = append(list, valueOf(e))
		}
		return strings.Join(list, ",")
	}
	return ""
}

// newTrace links spans to a tree. The file is untrusted: a span below itself becomes a root.
func newTrace(id string, spans []*Span) *Trace {
	slices.SortStableFunc(spans, func(a, b *Span) int { return a.Start.Compare(b.Start) })
	byID := map[string]*Span{}
	for _, s := range spans {
		byID[s.ID] = s
	}
	t := &Trace{ID: id, Spans: len(spans)}
	for _, s := range spans {
		if p := byID[s.ParentID]; p != nil && byID[s.ID] == s && !below(byID, p, s) {
			p.Children = append(p.Children, s)
		} else {
			t.Roots = append(t.Roots, s)
		}
	}
	return t
}

// below reports whether s is p or an ancestor of p.
func below(byID map[string]*Span, p, s *Span) bool {
	for range len(byID) + 1 {
		if p == s {
			return true
		}
		if p = byID[p.ParentID]; p == nil {
			return false
		}
	}
	return true
}

// Kind is the type of a span for viewers with support for generative AI. Jaeger's UI uses the same rule.
type Kind string

// Span kinds.
const (
	Agent Kind = "AGENT"
	LLM   Kind = "LLM"
	Tool  Kind = "TOOL"
	Other Kind = ""
)

func (s *Span) kind() Kind {
	switch s.Attributes[string(semconv.OperationName)] {
	case semconv.InvokeWorkflow, semconv.InvokeAgent, "create_agent":
		return Agent
	case semconv.Chat, "text_completion", "generate_content", semconv.Embeddings:
		return LLM
	case semconv.ExecuteTool:
		return Tool
	}
	return Other
}

// shown reports whether the short form includes the span. The short form omits Genkit's internal spans, and sandbox
// calls without information beyond the tool call above them.
func (s *Span) shown() bool {
	switch s.Name {
	case telemetry.SpanWorkflowStep, telemetry.SpanExec, telemetry.SpanStream, telemetry.SpanExecutor:
		return true
	case telemetry.SpanOpen:
		return s.Attributes[string(telemetry.KeyCreated)] == "true" || s.Failed
	}
	_, op, _ := strings.Cut(s.Name, ".")
	return s.kind() != Other || s.Attributes["genkit:name"] == "" && len(s.Events) > 0 ||
		op == telemetry.SpanDriverCreate || op == telemetry.SpanDriverPull
}

// sum returns the sum of an attribute over the model calls of the trace.
func (t *Trace) sum(key string) (n int) {
	t.each(func(s *Span, _ []bool) {
		if v, err := strconv.Atoi(s.Attributes[key]); err == nil && s.kind() == LLM {
			n += v
		}
	}, true)
	return n
}

// count returns the number of spans of a kind.
func (t *Trace) count(kind Kind) (n int) {
	t.each(func(s *Span, _ []bool) {
		if s.kind() == kind && s.Attributes[string(semconv.OperationName)] != semconv.InvokeWorkflow {
			n++
		}
	}, true)
	return n
}

// each calls fn for the spans of the trace, parents first. last reports for the span and each ancestor whether
// it is the last sibling. Unless all is set, hidden spans are replaced by their children.
func (t *Trace) each(fn func(s *Span, last []bool), all bool) {
	var walk func(spans []*Span, last []bool)
	walk = func(spans []*Span, last []bool) {
		for i, s := range spans {
			at := append(slices.Clone(last), i == len(spans)-1)
			fn(s, at)
			walk(visible(s.Children, all), at)
		}
	}
	walk(visible(t.Roots, all), nil)
}

func visible(spans []*Span, all bool) (out []*Span) {
	for _, s := range spans {
		if all || s.shown() {
			out = append(out, s)
		} else {
			out = append(out, visible(s.Children, all)...)
		}
	}
	slices.SortStableFunc(out, func(a, b *Span) int { return a.Start.Compare(b.Start) })
	return out
}

// bounds returns the start and the duration of the trace.
func (t *Trace) bounds() (start time.Time, took time.Duration) {
	start = t.Roots[0].Start
	end := start
	t.each(func(s *Span, _ []bool) {
		if s.End.After(end) {
			end = s.End
		}
	}, true)
	return start, max(end.Sub(start), time.Microsecond)
}
