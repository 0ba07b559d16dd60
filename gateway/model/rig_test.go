package model_test

import (
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/workcell-dev/workcell/gateway/model"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/llmtest"
)

const (
	realKey = "sk-operator-1234567890"
	sandbox = "sbx-1"
)

// rig is a proxy between a client and a model server, with HTTP over loopback on both sides.
type rig struct {
	t      *testing.T
	proxy  *model.Proxy
	inside *httptest.Server
	beyond *httptest.Server // model server
	mock   *llmtest.Server
	spans  *tracetest.InMemoryExporter
	log    *buffertest.Buffer
}

// newRig returns a rig whose model server plays script. If script is nil, it answers all requests.
func newRig(t *testing.T, script func(n int, r llmtest.Request) llmtest.Answer) *rig {
	t.Helper()
	if script == nil {
		script = func(int, llmtest.Request) llmtest.Answer { return llmtest.Answer{Text: "it is as you say"} }
	}
	mock := llmtest.New(script)
	r := newRigOn(t, mock)
	r.mock = mock
	return r
}

func newRigOn(t *testing.T, upstream http.Handler) *rig {
	t.Helper()
	r := &rig{t: t, beyond: httptest.NewServer(upstream), spans: tracetest.NewInMemoryExporter(), log: &buffertest.Buffer{}}
	t.Cleanup(r.beyond.Close)
	transport := &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 16}
	t.Cleanup(transport.CloseIdleConnections)
	provider := func(name, path, header, scheme string, dialects ...model.Dialect) model.Provider {
		u, err := url.Parse(r.beyond.URL)
		must(t, err)
		return model.Provider{Name: name, Dialects: dialects, Base: u.JoinPath(path), Auth: func(h http.Header) error { h.Set(header, scheme+realKey); return nil }}
	}
	prices, err := model.ParsePrices("f.yaml", []byte("usd_per_million_tokens: {anthropic: {small: {input: 1, output: 10}}}"))
	must(t, err)
	keyless := provider("keyless", "", "", "", model.Anthropic)
	keyless.Auth = func(h http.Header) error { h.Set("X-Api-Key", "x"); return nil }
	r.proxy, err = model.New([]model.Provider{
		keyless,
		provider("anthropic", "", "X-Api-Key", "", model.Anthropic),
		provider("openai", "/v1", "Authorization", "Bearer ", model.OpenAIResponses, model.OpenAIChat),
		provider("googleai", "", "X-Goog-Api-Key", "", model.Gemini),
	}, &model.Options{
		Log: slog.New(slog.NewTextHandler(r.log, nil)), Transport: transport, Prices: prices,
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(r.spans)),
	})
	must(t, err)
	r.inside = httptest.NewServer(r.proxy.Handler(sandbox))
	t.Cleanup(r.inside.Close)
	return r
}

// issue returns a lease that is closed at the end of the test.
func (r *rig) issue(g model.Grant) *model.Lease {
	r.t.Helper()
	if g.Models == nil {
		g.Models = []string{"small"}
	}
	l, err := r.proxy.Issue(g)
	must(r.t, err)
	r.t.Cleanup(func() { must(r.t, l.Close()) })
	return l
}

// dialect describes the requests of a client in one dialect.
type dialect struct {
	provider     string
	whole, parts string // paths for non-streamed and streamed answers
	body         string
}

func dialects() map[model.Dialect]dialect {
	return map[model.Dialect]dialect{
		model.Anthropic:       {"anthropic", "/v1/messages", "/v1/messages", `{"model":"small","max_tokens":9,"messages":[{"role":"user","content":"TEXT"}],"stream":STREAM}`},
		model.OpenAIChat:      {"openai", "/v1/chat/completions", "/chat/completions", `{"model":"small","messages":[{"role":"user","content":"TEXT"}],"stream":STREAM}`},
		model.OpenAIResponses: {"openai", "/v1/responses", "/responses", `{"model":"small","input":"TEXT","stream":STREAM}`},
		model.Gemini:          {"googleai", "/v1beta/models/small:generateContent", "/v1beta/models/small:streamGenerateContent?alt=sse", `{"contents":[{"parts":[{"text":"TEXT"}]}]}`},
	}
}

// request returns a request in the dialect.
func (d dialect) request(r *rig, key, text string, stream bool) *http.Request {
	path := d.whole
	body := strings.NewReplacer("TEXT", text, "STREAM", "false").Replace(d.body)
	if stream {
		path, body = d.parts, strings.NewReplacer("TEXT", text, "STREAM", "true").Replace(d.body)
	}
	return r.request(http.MethodPost, "/"+d.provider+path, key, body)
}

func (r *rig) request(method, path, key, body string) *http.Request {
	req, err := http.NewRequest(method, r.inside.URL+path, strings.NewReader(body))
	must(r.t, err)
	req.Header.Set("Authorization", "Bearer "+key)
	return req
}

// answer is a received answer.
type answer struct {
	status int
	header http.Header
	body   string
}

// do sends a request.
func (r *rig) do(req *http.Request) answer {
	r.t.Helper()
	res, err := http.DefaultTransport.RoundTrip(req)
	must(r.t, err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	must(r.t, err)
	maps.Copy(res.Header, res.Trailer)
	return answer{res.StatusCode, res.Header, string(body)}
}

// said returns the message of an error in any dialect.
func (a answer) said() string {
	var e struct{ Error struct{ Message string } }
	_ = json.Unmarshal([]byte(a.body), &e) // an error leaves it empty
	return e.Error.Message
}

var must = checktest.Must
