package hosttools_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/sandbox"
)

// obj is a JSON object.
type obj = map[string]any

// lookup returns a tool that returns its arguments.
func lookup() hosttools.Tool {
	return hosttools.Tool{
		Definition: hosttools.Definition{
			Name: "lookup", Description: "Finds an order.", ReadOnly: true,
			Input: obj{"type": "object", "properties": obj{"id": obj{"type": "string"}, "amount": obj{"type": "number"}}, "required": []any{"id"}, "additionalProperties": false},
		},
		Handle: func(_ context.Context, c hosttools.Call) (hosttools.Result, error) {
			return hosttools.Result{Data: c.Args}, nil
		},
	}
}

// tool returns a tool without a schema.
func tool(name string, handle hosttools.Handler) hosttools.Tool {
	return hosttools.Tool{Definition: hosttools.Definition{Name: name}, Handle: handle}
}

func allow(patterns ...string) hosttools.Rules {
	var r hosttools.Rules
	for _, p := range patterns {
		r.Allow = append(r.Allow, rules.Tool{Tool: p})
	}
	return r
}

func registry(t *testing.T, o *hosttools.Options, sources ...hosttools.Source) *hosttools.Registry {
	t.Helper()
	if o == nil {
		o = &hosttools.Options{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	r, err := hosttools.New(o, sources...)
	checktest.Must(t, err)
	t.Cleanup(func() { r.Close() })
	return r
}

func set(t *testing.T, r *hosttools.Registry, g hosttools.Grant) *hosttools.Set {
	t.Helper()
	s, err := r.Set(t.Context(), g)
	checktest.Must(t, err)
	t.Cleanup(func() { checktest.Must(t, s.Close(context.Background())) })
	return s
}

// dial connects a client like code in a sandbox.
func dial(t *testing.T, a *hosttools.Access, span trace.SpanContext) *mcp.ClientSession {
	t.Helper()
	inside := serve(t, a, span)
	client := mcp.NewClient(&mcp.Implementation{Name: "inside", Version: "1"}, nil)
	cs, err := client.Connect(t.Context(), &mcp.IOTransport{Reader: inside, Writer: inside}, nil)
	checktest.Must(t, err)
	t.Cleanup(func() { cs.Close() })
	return cs
}

// serve returns the sandbox's end of a connection.
func serve(t *testing.T, a *hosttools.Access, span trace.SpanContext) net.Conn {
	t.Helper()
	inside, host := net.Pipe()
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // context of the command
	go func() {
		defer close(ended)
		_ = a.Serve(ctx, host, "ex1", span) // the peer's disconnect is not a failure
	}()
	t.Cleanup(func() {
		inside.Close()
		cancel()
		<-ended
	})
	return inside
}

// call calls a tool like code in a sandbox, without a connection.
func call(t *testing.T, a *hosttools.Access, name, args string) hosttools.Reply {
	t.Helper()
	return a.Call(t.Context(), "ex1", trace.SpanContext{}, hosttools.Request{Tool: name, Args: json.RawMessage(args)})
}

func code(r hosttools.Reply) string {
	if r.Error == nil {
		return ""
	}
	return string(r.Error.Code)
}

// files stores written files in memory.
type files struct {
	mu   sync.Mutex
	data map[string]string
	err  error
}

func (f *files) WriteFile(_ context.Context, name string, r io.Reader, _ sandbox.WriteFileOptions) (sandbox.FileInfo, error) {
	b, err := io.ReadAll(r)
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.data == nil {
		f.data = map[string]string{}
	}
	if f.err == nil {
		f.data[name] = string(b)
	}
	return sandbox.FileInfo{}, errors.Join(err, f.err)
}
