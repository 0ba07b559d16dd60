// Package jaegertest runs a Jaeger of its own for a test.
package jaegertest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/e2e/jaegerapi"
	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/porttest"
)

const (
	attempts = 3               // a port that was free may be taken meanwhile
	patience = 3 * time.Minute // until it is ready
)

// Jaeger is a running instance; the test's end ends it.
type Jaeger struct {
	OTLPGRPC string // host:port of OTLP over gRPC
	OTLPHTTP string // the same over HTTP
	API      *jaegerapi.Client
}

// Start runs the Jaeger that hack/tool.sh builds (it is built first where
// that was not done) with ports of its own. root is the project's folder.
func Start(t testing.TB, root string) *Jaeger {
	t.Helper()
	binary := build(t, root)
	config := filepath.Join(root, "e2e", "jaeger", "config.yaml")
	var err error
	for range attempts {
		var j *Jaeger
		if j, err = start(t, binary, config); err == nil {
			return j
		}
	}
	t.Fatalf("jaegertest: %v", err)
	return nil
}

func build(t testing.TB, root string) string {
	t.Helper()
	out, err := rig.Output(exec.Command(filepath.Join(root, "hack", "tool.sh"), "jaeger"))
	rig.Must(t, err)
	return strings.TrimSpace(out)
}

func start(t testing.TB, binary, config string) (*Jaeger, error) {
	t.Helper()
	names := []string{"JAEGER_OTLP_GRPC_PORT", "JAEGER_OTLP_HTTP_PORT", "JAEGER_QUERY_PORT", "JAEGER_QUERY_GRPC_PORT", "JAEGER_HEALTH_PORT"}
	ports, err := porttest.Loopback(len(names))
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(binary, "--config", config)
	cmd.Env = os.Environ()
	for i, n := range names {
		cmd.Env = append(cmd.Env, n+"="+ports[i])
	}
	var log lockedBuffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait() // how it ended does not matter, its log has the reason
	}()
	stop := func() {
		_ = cmd.Process.Kill() // fails when it has ended
		<-ended
	}
	if err := ready(ports[4], ended); err != nil {
		stop()
		return nil, fmt.Errorf("%w: %s", err, log.tail(2000))
	}
	t.Cleanup(stop)
	return &Jaeger{
		OTLPGRPC: "127.0.0.1:" + ports[0],
		OTLPHTTP: "127.0.0.1:" + ports[1],
		API:      &jaegerapi.Client{URL: "http://127.0.0.1:" + ports[2]},
	}, nil
}

func ready(port string, ended <-chan struct{}) error {
	deadline := time.After(patience)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		resp, err := http.Get("http://127.0.0.1:" + port + "/status")
		if err == nil {
			_ = resp.Body.Close() // nothing was read of it
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-ended:
			return errors.New("jaeger ended")
		case <-deadline:
			return fmt.Errorf("jaeger was not ready within %v", patience)
		case <-tick.C:
		}
	}
}

// WaitTrace returns the trace once it is complete. Exporters send spans in
// batches, so the first answers may lack some.
func (j *Jaeger) WaitTrace(ctx context.Context, t testing.TB, id string, complete func(*jaegerapi.Trace) bool) *jaegerapi.Trace {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var last *jaegerapi.Trace
	for {
		trace, err := j.API.Trace(ctx, id)
		switch {
		case err == nil && complete(trace):
			return trace
		case err == nil:
			last = trace
		case ctx.Err() == nil && !errors.Is(err, jaegerapi.ErrNotFound):
			t.Fatalf("jaegertest: %v", err)
		}
		select {
		case <-ctx.Done():
			t.Fatalf("jaegertest: trace %s was not complete within %v: %+v", id, patience, last)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// lockedBuffer is written by the process while the test reads it.
type lockedBuffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) tail(n int) []byte {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.b.Bytes()
	return bytes.Clone(b[max(0, len(b)-n):])
}
