package hosttools_test

import (
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/gateway/hosttools"
	"github.com/workcell-dev/workcell/session"
)

// nowhere takes files.
type nowhere struct{}

func (nowhere) WriteFile(_ context.Context, _ string, r io.Reader, _ session.WriteFileOptions) (session.FileInfo, error) {
	_, err := io.Copy(io.Discard, r)
	return session.FileInfo{}, err
}

// BenchmarkLargeResult is what the host does with a result of 1 MiB, but for writing it.
func BenchmarkLargeResult(b *testing.B) {
	for name, data := range map[string]string{
		"text": `"` + strings.Repeat("x", 1<<20) + `"`, "rows": `[` + strings.Repeat(`{"id":1,"name":"a"},`, 50_000) + `null]`,
	} {
		b.Run(name, func(b *testing.B) {
			large := tool("large", func(context.Context, hosttools.Call) (hosttools.Result, error) {
				return hosttools.Result{Data: json.RawMessage(data)}, nil
			})
			r, err := hosttools.New(nil, hosttools.Static("app", large))
			if err != nil {
				b.Fatal(err)
			}
			rules := allow("app.*")
			rules.Limits.Calls, rules.Limits.PerSecond = 1_000_000, 10_000
			s, err := r.Set(b.Context(), hosttools.Grant{Rules: rules})
			if err != nil {
				b.Fatal(err)
			}
			a := s.Access(hosttools.Command{Files: nowhere{}})
			for b.Loop() {
				if reply := a.Call(b.Context(), "ex1", trace.SpanContext{}, hosttools.Request{Tool: "app.large"}); reply.Error != nil {
					b.Fatal(reply.Error)
				}
			}
		})
	}
}
