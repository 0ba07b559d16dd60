// Package model tests model requests from code in real sandboxes without a network, through the connection and the
// proxy, to a server that counts its own answers. The tests of package gateway/model verify which requests the proxy
// forwards.
package model

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/llmtest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

var must = checktest.Must

const (
	pythonImage = "workcell/python:3.11" // built by `make images`
	canary      = "sk-canary-7d1f3a9e"   // operator's key
)

// on runs a test on each engine in parallel.
func on(t *testing.T, test func(t *testing.T, d *desk)) {
	enginetest.On(t, func(t *testing.T, engine string) { test(t, newDesk(t, engine)) })
}

// desk is a sandbox whose commands use a model server through a proxy, and the data visible outside.
type desk struct {
	t     *testing.T
	m     *session.Manager
	s     *session.Session
	mock  *llmtest.Server
	proxy *model.Proxy
	at    *model.Attachment
	lease *model.Lease
	spans *tracetest.InMemoryExporter
	log   *buffertest.Buffer

	hold          atomic.Bool // holds incoming requests
	held, release chan struct{}
}

// models returns the model names allowed by a desk's leases.
func models() []string { return []string{"small"} }

func newDesk(t *testing.T, engine string) *desk {
	t.Helper()
	b := enginetest.Driver(t, engine)
	d := &desk{t: t, spans: tracetest.NewInMemoryExporter(), log: &buffertest.Buffer{}, held: make(chan struct{}, 16), release: make(chan struct{})}
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(d.spans))
	logger := slog.New(slog.NewTextHandler(d.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	d.mock = llmtest.New(func(_ int, r llmtest.Request) llmtest.Answer {
		if r.Header.Get("X-Api-Key") != canary && r.Header.Get("X-Goog-Api-Key") != canary && r.Header.Get("Authorization") != "Bearer "+canary {
			return llmtest.Answer{Status: http.StatusUnauthorized, Text: "that is not my key"}
		}
		if d.hold.Load() {
			d.held <- struct{}{}
			<-d.release
		}
		return llmtest.Answer{Text: "six times seven is 42"}
	})
	server := httptest.NewServer(d.mock)
	t.Cleanup(server.Close)
	provider := func(name, path, header, prefix string, dialects ...model.Dialect) model.Provider {
		u, err := url.Parse(server.URL + path)
		must(t, err)
		return model.Provider{Name: name, Dialects: dialects, Base: u, Auth: func(h http.Header) error { h.Set(header, prefix+canary); return nil }}
	}
	var err error
	d.proxy, err = model.New([]model.Provider{
		provider("anthropic", "", "X-Api-Key", "", model.Anthropic),
		provider("openai", "/v1", "Authorization", "Bearer ", model.OpenAIResponses, model.OpenAIChat),
		provider("googleai", "", "X-Goog-Api-Key", "", model.Gemini),
	}, &model.Options{Log: logger, TracerProvider: tracers})
	must(t, err)
	d.m = enginetest.Manager(t, b, &session.Options{Instance: "model-" + record.NewID(), Logger: logger, TracerProvider: tracers})
	d.s, _, err = d.m.Open(t.Context(), session.UserKey("desk"), session.Request{Image: pythonImage})
	must(t, err)
	d.at, err = d.proxy.Attach(t.Context(), d.s.Sandbox)
	must(t, err)
	d.lease = d.issue("anthropic")
	return d
}

// issue returns a lease for the desk's sandbox. It is closed at the end of the test.
func (d *desk) issue(provider string) *model.Lease {
	d.t.Helper()
	l, err := d.proxy.Issue(model.Grant{Provider: provider, Models: models(), SandboxID: d.s.ID(), Run: "run-1"})
	must(d.t, err)
	d.t.Cleanup(func() { must(d.t, l.Close()) })
	return l
}

// inside is the common beginning of programs. The function ask sends a request with the key in the first argument to
// the base URL in the second argument.
const inside = `
import json, sys, urllib.error, urllib.request
KEY, BASE = sys.argv[1], sys.argv[2]
def ask(body, path="/v1/messages", key=KEY, timeout=60, **headers):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(BASE + path, data, {"x-api-key": key, "content-type": "application/json", **headers})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as answer: return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e: return e.code, e.read().decode()
BODY = {"model": "small", "max_tokens": 100, "messages": [{"role": "user", "content": "six times seven?"}]}
`

// python runs a program in the sandbox with a lease, and returns the output.
func (d *desk) python(l *model.Lease, provider, code string) string {
	d.t.Helper()
	res, err := d.s.Exec(d.t.Context(), sandbox.ExecRequest{Argv: []string{"python3", "-c", inside + code, l.Key(), d.at.BaseURL(provider)}})
	must(d.t, err)
	if res.ExitCode != 0 || res.Status != sandbox.ExecCompleted {
		d.t.Fatalf("%s, exit code %d: %s", res.Status, res.ExitCode, res.Stderr.Bytes())
	}
	return string(res.Stdout.Bytes())
}
