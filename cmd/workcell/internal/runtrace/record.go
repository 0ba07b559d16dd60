// Package runtrace stores the spans of a run in a file next to the run's other files, and draws them as a waterfall
// chart. Users can view traces without a collector.
//
// The file has the format of OpenTelemetry's file exporter: lines of OTLP JSON that a collector accepts unchanged.
package runtrace

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/encoding/protojson"
)

// FileName is the name of the file in the run's directory.
const FileName = "trace.jsonl"

// maxBytes limits the file of a run, and the spans waiting for a file. It fits about 10,000 spans without contents.
const maxBytes = 16 << 20

// errFull means the file reached the size limit.
var errFull = fmt.Errorf("the trace exceeds %d MiB; later spans are not saved", maxBytes>>20)

// Recorder writes the spans of a run to a file. Spans from before Keep wait in memory. It is safe for
// concurrent use.
type Recorder struct {
	mu      sync.Mutex // guards the fields below
	waiting []byte     // lines waiting for the file
	file    *os.File   // nil before Keep
	size    int        // bytes in the file
	err     error      // first error; nothing is written after an error
}

// Exporter returns the exporter for the spans to record.
func (r *Recorder) Exporter() sdktrace.SpanExporter { return otlptrace.NewUnstarted(client{r}) }

// Keep creates dir and the file in it, and writes all spans to the file. If the file has spans of earlier processes of
// the run, Keep appends to it. Later calls have no effect, because one process executes one run. Keep reports whether
// the file exists.
func (r *Recorder) Keep(dir string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file != nil || r.err != nil {
		return r.file != nil
	}
	if r.err = os.MkdirAll(dir, 0o700); r.err != nil {
		return false
	}
	if r.file, r.err = os.OpenFile(filepath.Join(dir, FileName), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); r.err != nil {
		return false
	}
	st, err := r.file.Stat()
	if err != nil {
		r.err = err
		return true
	}
	r.size = int(st.Size())
	lines := r.waiting
	r.waiting = nil
	if last := []byte{'\n'}; r.size > 0 {
		if _, err := r.file.ReadAt(last, st.Size()-1); err == nil && last[0] != '\n' {
			// A killed process left an incomplete line.
			lines = append([]byte{'\n'}, lines...)
		}
	}
	r.write(lines)
	return true
}

// Close closes the file and returns the first write error.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return r.err
	}
	err := r.file.Close()
	r.file = nil
	r.err = cmp.Or(r.err, err)
	err, r.err = r.err, errors.Join(r.err, os.ErrClosed)
	return err
}

// write appends complete lines. The caller must hold r.mu.
func (r *Recorder) write(lines []byte) {
	switch {
	case r.err != nil || len(lines) == 0:
	case r.size+len(r.waiting)+len(lines) > maxBytes:
		r.err = errFull
	case r.file == nil:
		r.waiting = append(r.waiting, lines...)
	default:
		n, err := r.file.Write(lines)
		r.size += n
		r.err = err
	}
}

// client receives the spans of OpenTelemetry's exporter in OTLP format.
type client struct{ r *Recorder }

func (client) Start(context.Context) error { return nil }
func (client) Stop(context.Context) error  { return nil }

// UploadTraces writes one line. The recorder stores write errors, to avoid an effect on the export to a collector.
func (c client) UploadTraces(_ context.Context, spans []*tracepb.ResourceSpans) error {
	line, err := marshal(&tracepb.TracesData{ResourceSpans: spans})
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	c.r.err = cmp.Or(c.r.err, err)
	c.r.write(line)
	return nil
}

// marshal returns data as OTLP JSON with a line feed. It differs from protobuf's JSON in two points: ids are
// hexadecimal and enums are numbers.
func marshal(data *tracepb.TracesData) ([]byte, error) {
	raw, err := protojson.MarshalOptions{UseEnumNumbers: true}.Marshal(data)
	if err != nil {
		return nil, err
	}
	raw, err = convertIDs(raw, func(s string) (string, error) {
		id, err := base64.StdEncoding.DecodeString(s)
		return hex.EncodeToString(id), err
	})
	return append(raw, '\n'), err
}

// unmarshal parses a line written by marshal.
func unmarshal(line []byte) (*tracepb.TracesData, error) {
	raw, err := convertIDs(line, func(s string) (string, error) {
		id, err := hex.DecodeString(s)
		return base64.StdEncoding.EncodeToString(id), err
	})
	if err != nil {
		return nil, err
	}
	data := &tracepb.TracesData{}
	return data, protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(raw, data)
}

// convertIDs returns OTLP JSON with converted trace and span ids.
func convertIDs(raw []byte, convert func(string) (string, error)) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, err
	}
	var failed error
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case []any:
			for _, e := range v {
				walk(e)
			}
		case map[string]any:
			for key, e := range v {
				id, ok := e.(string)
				switch key {
				case "traceId", "spanId", "parentSpanId":
					if ok {
						converted, err := convert(id)
						v[key], failed = converted, errors.Join(failed, err)
					}
				default:
					walk(e)
				}
			}
		}
	}
	walk(v)
	if failed != nil {
		return nil, failed
	}
	return json.Marshal(v)
}
