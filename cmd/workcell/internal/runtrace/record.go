// Package runtrace keeps the spans of a run in a file beside what else is kept of it, and draws them as a waterfall, so
// that a trace can be seen where no collector is.
//
// The file is that of OpenTelemetry's file exporter: lines of OTLP JSON, each of which a collector takes as it is.
package runtrace

import (
	"bytes"
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

// FileName is the name of the file in the directory of its run.
const FileName = "trace.jsonl"

// maxBytes bounds the file of a run, and what waits for one: about 10,000 spans without contents.
const maxBytes = 16 << 20

// errFull: the file has no room for further spans.
var errFull = fmt.Errorf("the trace exceeds %d MiB; later spans are not saved", maxBytes>>20)

// Recorder writes the spans of a run to a file. Those that end before the file is known wait for it. It is safe for
// concurrent use.
type Recorder struct {
	mu      sync.Mutex // guards what follows
	waiting []byte     // lines that have no file yet
	file    *os.File   // nil before Keep
	size    int        // bytes in the file
	err     error      // the first failure; nothing is written after it
}

// Exporter returns the exporter whose spans are recorded.
func (r *Recorder) Exporter() sdktrace.SpanExporter { return otlptrace.NewUnstarted(client{r}) }

// Keep makes dir, and in it the file that all spans go to, those of earlier processes of the run before them. Later
// calls change nothing: one process has one run.
func (r *Recorder) Keep(dir string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file != nil || r.err != nil {
		return
	}
	if r.err = os.MkdirAll(dir, 0o700); r.err != nil {
		return
	}
	if r.file, r.err = os.OpenFile(filepath.Join(dir, FileName), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600); r.err != nil {
		return
	}
	st, err := r.file.Stat()
	if err != nil {
		r.err = err
		return
	}
	r.size = int(st.Size())
	lines := r.waiting
	r.waiting = nil
	if last := []byte{'\n'}; r.size > 0 {
		if _, err := r.file.ReadAt(last, st.Size()-1); err == nil && last[0] != '\n' { // a killed process left half a line
			lines = append([]byte{'\n'}, lines...)
		}
	}
	r.write(lines)
}

// Close closes the file and returns the first error of all that was written.
func (r *Recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return r.err
	}
	err := r.file.Close()
	r.file = nil
	if r.err == nil {
		r.err = err
	}
	err, r.err = r.err, errors.Join(r.err, os.ErrClosed)
	return err
}

// Kept reports whether there is a file.
func (r *Recorder) Kept() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.file != nil
}

// write appends whole lines. r.mu is held.
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

// client is what OpenTelemetry's exporter, which knows OTLP, hands its spans to.
type client struct{ r *Recorder }

func (client) Start(context.Context) error { return nil }
func (client) Stop(context.Context) error  { return nil }

// UploadTraces writes one line. Its failures are the recorder's: a collector gets the spans all the same.
func (c client) UploadTraces(_ context.Context, spans []*tracepb.ResourceSpans) error {
	line, err := marshal(&tracepb.TracesData{ResourceSpans: spans})
	c.r.mu.Lock()
	defer c.r.mu.Unlock()
	if err != nil && c.r.err == nil {
		c.r.err = err
	}
	c.r.write(line)
	return nil
}

// marshal returns OTLP JSON and a line feed: protobuf's JSON, but for ids, which are hexadecimal, and enums, which are
// numbers.
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

// unmarshal reads a line that marshal wrote.
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

// convertIDs returns OTLP JSON with other ids of traces and spans.
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
