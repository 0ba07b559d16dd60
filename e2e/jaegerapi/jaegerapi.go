// Package jaegerapi reads traces back from Jaeger's query API.
package jaegerapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxAnswer bounds what is read of an answer; one trace of a long run with
// whole conversations on its model spans has a few megabytes.
const maxAnswer = 256 << 20

// ErrNotFound is returned when Jaeger has no such trace (yet).
var ErrNotFound = errors.New("jaegerapi: no such trace")

// Client reads from one Jaeger. It is safe for concurrent use.
type Client struct {
	// URL is the query API's root, such as http://localhost:16686.
	URL string
}

// Trace is all spans of one trace.
type Trace struct {
	ID string
	// Roots are the spans without a parent in this trace, by start.
	Roots []*Span
	// Spans are all spans, by start.
	Spans []*Span
}

// Span is one span and what lies below it.
type Span struct {
	ID, ParentID string
	Name         string
	Service      string
	Start        time.Time
	Duration     time.Duration
	// Tags holds attributes as text, whatever their type; Jaeger adds some
	// of its own (span.kind, otel.status_code, error).
	Tags     map[string]string
	Events   []Event
	Parent   *Span   // nil for a root
	Children []*Span // by start
}

// Event is something that happened within a span.
type Event struct {
	At   time.Time
	Tags map[string]string // the name under "event"
}

// Services lists the names of the services that sent spans.
func (c *Client) Services(ctx context.Context) ([]string, error) {
	var out struct{ Data []string }
	return out.Data, c.get(ctx, "/api/services", nil, &out)
}

// Trace returns the trace with an id of 32 hexadecimal digits.
func (c *Client) Trace(ctx context.Context, id string) (*Trace, error) {
	var out answer
	if err := c.get(ctx, "/api/traces/"+url.PathEscape(id), nil, &out); err != nil {
		return nil, err
	}
	if len(out.Data) == 0 {
		return nil, ErrNotFound
	}
	return out.Data[0].trace(), nil
}

// Search says which traces Find returns.
type Search struct {
	Service   string            // required
	Operation string            // a span's name; empty means any
	Tags      map[string]string // attributes one span must have
	Since     time.Time         // zero means one hour ago
	Limit     int               // zero means 20
}

// Find returns matching traces, the newest first.
func (c *Client) Find(ctx context.Context, s Search) ([]*Trace, error) {
	if s.Since.IsZero() {
		s.Since = time.Now().Add(-time.Hour)
	}
	q := url.Values{
		"service": {s.Service},
		"start":   {strconv.FormatInt(s.Since.UnixMicro(), 10)},
		"end":     {strconv.FormatInt(time.Now().Add(time.Minute).UnixMicro(), 10)},
		"limit":   {strconv.Itoa(cmp.Or(s.Limit, 20))},
	}
	if s.Operation != "" {
		q.Set("operation", s.Operation)
	}
	if len(s.Tags) > 0 {
		tags, err := json.Marshal(s.Tags)
		if err != nil {
			return nil, fmt.Errorf("jaegerapi: %w", err)
		}
		q.Set("tags", string(tags))
	}
	var out answer
	if err := c.get(ctx, "/api/traces", q, &out); err != nil {
		return nil, err
	}
	traces := make([]*Trace, 0, len(out.Data))
	for _, d := range out.Data {
		if t := d.trace(); len(t.Roots) > 0 {
			traces = append(traces, t)
		}
	}
	slices.SortFunc(traces, func(a, b *Trace) int { return b.Roots[0].Start.Compare(a.Roots[0].Start) })
	return traces, nil
}

func (c *Client) get(ctx context.Context, path string, q url.Values, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(c.URL, "/")+path+"?"+q.Encode(), nil)
	if err != nil {
		return fmt.Errorf("jaegerapi: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("jaegerapi: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("jaegerapi: %s: %w", path, err)
	}
	switch {
	case resp.StatusCode == http.StatusNotFound:
		return ErrNotFound
	case resp.StatusCode != http.StatusOK:
		return fmt.Errorf("jaegerapi: %s: %s: %.200s", path, resp.Status, body)
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("jaegerapi: %s: %w", path, err)
	}
	return nil
}

// answer is the query API's form of traces.
type answer struct {
	Data []traceData
}

type traceData struct {
	TraceID   string
	Processes map[string]struct{ ServiceName string }
	Spans     []struct {
		SpanID        string
		OperationName string
		ProcessID     string
		StartTime     int64 // microseconds
		Duration      int64 // microseconds
		References    []struct{ RefType, TraceID, SpanID string }
		Tags          []tag
		Logs          []struct {
			Timestamp int64
			Fields    []tag
		}
	}
}

type tag struct {
	Key   string
	Value any
}

func tags(list []tag) map[string]string {
	m := make(map[string]string, len(list))
	for _, t := range list {
		m[t.Key] = fmt.Sprint(t.Value)
	}
	return m
}

func (d traceData) trace() *Trace {
	t := &Trace{ID: d.TraceID}
	byID := map[string]*Span{}
	for _, s := range d.Spans {
		span := &Span{
			ID: s.SpanID, Name: s.OperationName, Service: d.Processes[s.ProcessID].ServiceName,
			Start: time.UnixMicro(s.StartTime), Duration: time.Duration(s.Duration) * time.Microsecond,
			Tags: tags(s.Tags),
		}
		for _, r := range s.References {
			if r.RefType == "CHILD_OF" && r.TraceID == d.TraceID {
				span.ParentID = r.SpanID
			}
		}
		for _, l := range s.Logs {
			span.Events = append(span.Events, Event{At: time.UnixMicro(l.Timestamp), Tags: tags(l.Fields)})
		}
		byID[span.ID] = span
		t.Spans = append(t.Spans, span)
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
