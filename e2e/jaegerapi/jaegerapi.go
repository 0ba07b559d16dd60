// Package jaegerapi reads traces from Jaeger's query API.
package jaegerapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"
)

// ErrNotFound means that Jaeger does not have the trace, or not yet.
var ErrNotFound = errors.New("jaegerapi: no such trace")

// Client reads from one Jaeger. It is safe for concurrent use.
type Client struct {
	// URL is the root URL of the query API, for example http://localhost:16686.
	URL string
}

// Trace contains all spans of one trace.
type Trace struct {
	ID string
	// Roots are the spans without a parent in this trace, by start.
	Roots []*Span
	// Spans are all spans, by start.
	Spans []*Span
}

// Span is a span with child spans.
type Span struct {
	ID, ParentID string
	Name         string
	Start        time.Time
	Duration     time.Duration
	// Tags are the attributes as text, regardless of their type. Jaeger adds some tags (span.kind, otel.status_code,
	// error).
	Tags     map[string]string
	Parent   *Span   // nil for a root
	Children []*Span // by start
}

// Trace returns the trace with an id of 32 hexadecimal digits.
func (c *Client) Trace(ctx context.Context, id string) (*Trace, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(c.URL, "/")+"/api/traces/"+id, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNotFound:
		return nil, ErrNotFound
	default:
		return nil, fmt.Errorf("jaegerapi: %s: %s", req.URL, resp.Status)
	}
	var out struct{ Data []traceData }
	if err := json.NewDecoder(resp.Body).Decode(&out); err != nil {
		return nil, fmt.Errorf("jaegerapi: %s: %w", req.URL, err)
	}
	if len(out.Data) == 0 {
		return nil, ErrNotFound
	}
	return out.Data[0].trace(), nil
}

type traceData struct {
	TraceID string
	Spans   []struct {
		SpanID        string
		OperationName string
		StartTime     int64 // microseconds
		Duration      int64 // microseconds
		References    []struct{ RefType, TraceID, SpanID string }
		Tags          []struct {
			Key   string
			Value any
		}
	}
}

func (d traceData) trace() *Trace {
	var spans []*Span
	for _, s := range d.Spans {
		span := &Span{
			ID: s.SpanID, Name: s.OperationName,
			Start: time.UnixMicro(s.StartTime), Duration: time.Duration(s.Duration) * time.Microsecond,
			Tags: map[string]string{},
		}
		for _, tag := range s.Tags {
			span.Tags[tag.Key] = fmt.Sprint(tag.Value)
		}
		for _, r := range s.References {
			if r.RefType == "CHILD_OF" && r.TraceID == d.TraceID {
				span.ParentID = r.SpanID
			}
		}
		spans = append(spans, span)
	}
	return NewTrace(d.TraceID, spans)
}

// NewTrace returns a trace with spans, and sets the spans' Parent and Children.
func NewTrace(id string, spans []*Span) *Trace {
	t := &Trace{ID: id, Spans: slices.Clone(spans)}
	byID := map[string]*Span{}
	for _, s := range t.Spans {
		s.Parent, s.Children = nil, nil
		byID[s.ID] = s
	}
	slices.SortStableFunc(t.Spans, func(a, b *Span) int { return a.Start.Compare(b.Start) })
	for _, s := range t.Spans {
		if p := byID[s.ParentID]; p != nil && p != s {
			s.Parent = p
			p.Children = append(p.Children, s)
		} else {
			t.Roots = append(t.Roots, s)
		}
	}
	return t
}
