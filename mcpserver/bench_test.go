package mcpserver_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/session"
)

// BenchmarkStdioOverhead measures what the MCP front adds to a command in a sandbox: the same command directly and through
// JSON-RPC over pipes, one after the other, so that both see the same machine.
func BenchmarkStdioOverhead(b *testing.B) {
	m := newManager(b)
	s := newServer(b, m, nil)
	inR, inW := pipe(b)
	outR, outW := pipe(b)
	served := make(chan error, 1)
	go func() { served <- s.ServeStdio(context.Background(), inR, outW) }()
	lines := bufio.NewReaderSize(outR, 1<<20)
	ask := func(id int, method, params string) {
		if _, err := fmt.Fprintf(inW, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", id, method, params); err != nil {
			b.Fatal(err)
		}
		line, err := lines.ReadString('\n')
		if err != nil || !strings.Contains(line, `"result"`) || strings.Contains(line, `"isError":true`) {
			b.Fatalf("%s: %s %v", method, line, err)
		}
	}
	ask(1, "initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"bench","version":"1"}}`)
	const call = `{"name":"sandbox_exec","arguments":{"cmd":["/bin/true"]}}`
	ask(2, "tools/call", call)
	direct, _, err := m.Open(b.Context(), session.AgentKey(session.NewRunID(), session.DefaultName), session.Request{Image: pythonImage})
	if err != nil {
		b.Fatal(err)
	}
	var bare, fronted []time.Duration
	b.ResetTimer()
	for i := range b.N {
		began := time.Now()
		if _, err := direct.Exec(b.Context(), session.ExecRequest{Argv: []string{"/bin/true"}}); err != nil {
			b.Fatal(err)
		}
		between := time.Now()
		ask(i+3, "tools/call", call)
		bare, fronted = append(bare, between.Sub(began)), append(fronted, time.Since(between))
	}
	b.StopTimer()
	median := func(list []time.Duration) float64 {
		slices.Sort(list)
		return float64(list[len(list)/2].Microseconds())
	}
	b.ReportMetric(median(bare), "direct-p50-µs")
	b.ReportMetric(median(fronted), "mcp-p50-µs")
	b.ReportMetric(median(fronted)-median(bare), "overhead-p50-µs")
	inW.Close()
	if err := <-served; err != nil {
		b.Error(err)
	}
}

func pipe(b *testing.B) (*os.File, *os.File) {
	b.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		for _, c := range []io.Closer{r, w} {
			_ = c.Close() // some are closed already
		}
	})
	return r, w
}
