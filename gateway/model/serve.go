package model

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/internal/httpconn"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
)

// Limits of a request.
const (
	maxBody  = 32 << 20
	bodyTime = time.Minute // maximum time to receive the body
	// goneTime is the maximum time to read the rest of an answer for metering after the client disconnected.
	goneTime = 2 * time.Minute
	maxLog   = 1 << 10 // logged bytes of a provider's error message
)

// Forwarded headers. All other headers of requests are dropped. All other headers of answers are dropped too, because
// they identify the account.
var (
	requestHeaders = []string{
		"Content-Type", "Accept", "User-Agent", "Anthropic-Version", "Anthropic-Beta", "Openai-Beta", "X-Goog-Api-Client",
		"Idempotency-Key",
	}
	answerHeaders = []string{
		"Content-Type", "Cache-Control", "Date", "Retry-After", "Retry-After-Ms", "Request-Id", "X-Request-Id",
		"X-Should-Retry",
	}
)

// handler returns the HTTP handler for the requests of one sandbox.
func (p *Proxy) handler(sandbox string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		dialect, err := p.serve(w, r, sandbox)
		if f, ok := errors.AsType[*refusal](err); ok {
			dialect.refuse(w, f)
		}
	})
}

// exchange is a forwarded request with the answer.
type exchange struct {
	*checked
	route
	p        *Proxy
	l        *Lease
	provider Provider
	r        *http.Request
	span     trace.Span
	began    time.Time
	key      http.Header // provider's key
	accepted atomic.Bool // the provider received the whole request and did not reject it
}

// serve handles a request. An error is a *refusal to send as the answer.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request, sandbox string) (Dialect, error) {
	name, path, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	provider := p.providers[name]
	rt, ok := routeOf(provider.Dialects, r.Method, "/"+path)
	if !ok || r.URL.Host != "" || r.URL.RawPath != "" || r.Header.Get("Upgrade") != "" {
		dialects := append(slices.Clone(provider.Dialects), "") // an unknown provider has none
		return dialects[0], refuse(http.StatusNotFound, "only requests to models are supported")
	}
	l := p.find(sandbox, keysOf(r))
	if l == nil || l.grant.Provider != name {
		return rt.dialect, refuse(http.StatusUnauthorized, "this key does not belong to a running run")
	}
	if rt.kind == list && rt.model != "" && !slices.Contains(l.grant.Models, rt.model) {
		return rt.dialect, refuse(http.StatusNotFound, "unknown model")
	}
	end, ok := l.begin()
	if !ok {
		return rt.dialect, refuse(http.StatusUnauthorized, "the run of this key has ended")
	}
	defer end()
	x := &exchange{p: p, l: l, route: rt, provider: provider, r: r, began: time.Now()}
	return rt.dialect, x.run(w)
}

// run checks a request and forwards it.
func (x *exchange) run(w http.ResponseWriter) (err error) {
	size := x.r.ContentLength
	if size < 0 || size > maxBody {
		size = maxBody
	}
	rc := http.NewResponseController(w)
	defer httpconn.EndWith(x.l.ctx, w)()
	release, ok := x.l.slot(x.r.Context(), &size)
	if !ok {
		return x.refuse(refuse(http.StatusTooManyRequests, "too many concurrent requests of this run"))
	}
	defer release()
	x.checked = &checked{}
	if x.kind != list {
		raw, err := x.readBody(w, rc)
		if err == nil {
			x.l.sizes.Release(size - int64(len(raw))) // the size was unknown
			size = int64(len(raw))
			x.checked, err = check(x.route, x.l.grant, raw, x.l.left)
		}
		if err != nil {
			return x.refuse(err)
		}
	}
	x.key = http.Header{}
	if x.provider.Auth != nil {
		if err := x.provider.Auth(x.key); err != nil {
			x.p.o.Log.Error("cannot get a model provider's key", "provider", x.provider.Name, "error", err)
			return x.refuse(refuse(http.StatusBadGateway, "the operator's key for %s is not available", x.provider.Name))
		}
	}
	if err := x.l.reserve(x.checked, x.kind == generate); err != nil {
		return x.refuse(err)
	}
	x.startSpan(x.checked.model)
	defer x.span.End()
	defer x.l.settle(x.checked, tokens{}, false) // has no effect if the request was settled already
	ctx, cancel := x.lingering(release)
	defer cancel()
	out := x.r.WithContext(ctx)
	out.Body, out.ContentLength = io.NopCloser(bytes.NewReader(x.body)), int64(len(x.body))
	relay := httpconn.Relay{Transport: x.p.o.Transport, Rewrite: x.rewrite, Answer: x.answer, Failed: x.failed}
	relay.ServeHTTP(w, out)
	return nil
}

// maxRefusedSpans is how many refusals of a lease are recorded as spans. A program in a loop would fill the trace with
// them.
const maxRefusedSpans = 32

// refuse counts a refusal and records it as a separate span.
func (x *exchange) refuse(err error) error {
	if f, ok := errors.AsType[*refusal](err); ok && x.l.refused(f.spent) <= maxRefusedSpans {
		x.startSpan("")
		x.span.SetAttributes(semconv.HTTPStatus.Int(f.status))
		telemetry.Fail(x.span, errorNames[f.status].anthropic)
		x.span.End()
	}
	return err
}

// readBody reads the body. The body must arrive in time, must not be too large, and must not be encoded.
func (x *exchange) readBody(w http.ResponseWriter, rc *http.ResponseController) ([]byte, error) {
	if e := x.r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return nil, refuse(http.StatusUnsupportedMediaType, "send the request without Content-Encoding")
	}
	_ = rc.SetReadDeadline(time.Now().Add(bodyTime)) // always supported by these connections
	if x.l.ctx.Err() != nil {
		_ = rc.SetReadDeadline(time.Unix(1, 0)) // the lease ended in the meantime
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, x.r.Body, maxBody))
	_ = rc.SetReadDeadline(time.Time{})
	switch {
	case errors.As(err, new(*http.MaxBytesError)):
		return nil, refuse(http.StatusRequestEntityTooLarge, "the request is larger than %d MiB", maxBody>>20)
	case err != nil:
		return nil, refuse(http.StatusBadRequest, "the request is incomplete")
	}
	return raw, nil
}

// lingering returns the context of the request to the provider. It is done when the lease ends, and some time after the
// client disconnected. The client's slot is freed immediately. If too many requests have no client, the context is done
// when the client disconnects.
func (x *exchange) lingering(release func()) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(x.r.Context()))
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{WroteRequest: func(i httptrace.WroteRequestInfo) {
		x.accepted.Store(i.Err == nil)
	}})
	stop := context.AfterFunc(x.l.ctx, cancel)
	weight := int64(len(x.body)) + bodiesSize/maxGone
	gone := context.AfterFunc(x.r.Context(), func() {
		if x.l.gone.TryAcquire(weight) {
			release()
			select {
			case <-ctx.Done():
			case <-time.After(goneTime):
			}
			x.l.gone.Release(weight)
		}
		cancel()
	})
	return ctx, func() { cancel(); stop(); gone() }
}

// rewrite makes the request to the provider.
func (x *exchange) rewrite(in *http.Request) (*url.URL, http.Header) {
	u := *x.provider.Base
	u.Path = path.Join("/", u.Path, x.upstream) // URL.JoinPath returns a path without the slash
	u.RawQuery = query(in.URL.Query())
	h := http.Header{}
	for _, name := range requestHeaders {
		if v := in.Header.Values(name); len(v) > 0 {
			h[name] = v
		}
	}
	if x.kind != list {
		h.Set("Content-Type", "application/json")
	}
	maps.Copy(h, x.key)
	return &u, h
}

// answer meters the provider's answer, and removes data hidden from the sandbox.
func (x *exchange) answer(res *http.Response) error {
	x.span.SetAttributes(semconv.HTTPStatus.Int(res.StatusCode))
	x.accepted.Store(res.StatusCode/100 == 2 && mediaType(res) != "text/html")
	switch {
	case res.StatusCode == http.StatusUnauthorized || res.StatusCode == http.StatusForbidden:
		x.logAnswer(res)
		return forbid("%s refused the operator's key or the request", x.provider.Name)
	case res.StatusCode < 200 || res.StatusCode >= 300 && res.StatusCode < 400:
		return fmt.Errorf("unexpected status %d", res.StatusCode)
	case res.StatusCode < 300 && mediaType(res) == "text/html":
		return errors.New("an HTML page instead of an answer") // some clients would retry endlessly
	case strings.Join(res.Header["Content-Encoding"], "") != "":
		return errors.New("an answer with a Content-Encoding, which cannot be metered")
	}
	h := http.Header{}
	secrets := httpconn.Secrets(x.key)
	for name, values := range res.Header {
		if slices.Contains(answerHeaders, name) || strings.Contains(name, "Ratelimit") {
			for _, v := range values {
				h.Add(name, secrets.Replace(v))
			}
		}
	}
	res.Header, res.Trailer, res.ContentLength = h, nil, -1
	switch {
	case res.StatusCode >= 400:
		telemetry.Fail(x.span, "provider_error")
	case x.kind == generate:
		x.meter(res)
	case x.kind == list:
		if err := x.ownModels(res); err != nil {
			return fmt.Errorf("a list of models: %w", err)
		}
	}
	res.Body = secrets.Reader(res.Body)
	return nil
}

// ownModels removes models outside of the lease from a list, because their names reveal information about the account.
func (x *exchange) ownModels(res *http.Response) error {
	var body map[string]any
	err := json.NewDecoder(io.LimitReader(res.Body, maxBody)).Decode(&body)
	if err = errors.Join(err, res.Body.Close()); err != nil {
		return err
	}
	for _, key := range []string{"data", "models"} {
		if models, ok := body[key].([]any); ok {
			body[key] = slices.DeleteFunc(models, func(m any) bool {
				fields, _ := m.(map[string]any)
				id, _ := cmp.Or(fields["id"], fields["name"]).(string)
				return !slices.Contains(x.l.grant.Models, strings.TrimPrefix(id, "models/"))
			})
		}
	}
	delete(body, "first_id") // these contain model names too
	delete(body, "last_id")
	raw, err := json.Marshal(body)
	res.Body = io.NopCloser(bytes.NewReader(raw))
	return err
}

// mediaType returns the type of an answer without parameters; empty when it cannot be read.
func mediaType(res *http.Response) string {
	kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")) // an error leaves kind empty
	return kind
}

// meter inserts the meter into an answer.
func (x *exchange) meter(res *http.Response) {
	m := &meter{dialect: x.dialect, stream: mediaType(res) == "text/event-stream"}
	first := sync.OnceFunc(func() {
		x.span.SetAttributes(telemetry.KeyFirstByte.Int64(time.Since(x.began).Milliseconds()))
	})
	res.Body = &metered{ReadCloser: res.Body, m: m, first: first, done: func() {
		used, estimated := m.total(x.input, x.longest)
		cost := x.l.settle(x.checked, used, estimated)
		x.span.SetAttributes(semconv.InputTokens.Int64(used.input), semconv.OutputTokens.Int64(used.output),
			semconv.CachedTokens.Int64(used.cacheRead), semconv.ThinkingTokens.Int64(used.reasoning),
			telemetry.KeyCost.Float64(cost))
	}}
}

// logAnswer logs the text of a provider's error answer, without the key.
func (x *exchange) logAnswer(res *http.Response) {
	text, _ := io.ReadAll(io.LimitReader(res.Body, maxLog)) // as much as there is
	answer := httpconn.Secrets(x.key).Replace(string(text))
	x.p.o.Log.Warn("a model provider refused a request", "provider", x.provider.Name, "status", res.StatusCode,
		"answer", answer)
}

// failed answers if the provider did not answer, or sent an unusable answer.
func (x *exchange) failed(w http.ResponseWriter, _ *http.Request, err error) {
	f, ok := errors.AsType[*refusal](err)
	if !ok {
		// The error quotes invalid answers.
		quoted := httpconn.Secrets(x.key).Replace(err.Error())
		x.p.o.Log.Warn("a model provider did not respond", "provider", x.provider.Name, "error", quoted)
		if x.accepted.Load() { // the model may have used reasoning for a long time
			x.l.settle(x.checked, tokens{input: x.input, output: x.longest}, true)
		}
		f = &refusal{status: http.StatusBadGateway, message: x.provider.Name + " is unreachable or sent an invalid response"}
	}
	telemetry.Fail(x.span, errorNames[f.status].anthropic)
	x.dialect.refuse(w, f)
}

// startSpan starts the span of a request to run a model. Other requests have no span.
func (x *exchange) startSpan(model string) {
	x.span = trace.SpanFromContext(context.Background())
	if x.kind != generate {
		return
	}
	g := x.l.grant
	attrs := append(telemetry.Texts(map[attribute.Key]string{
		telemetry.KeySandboxID: g.SandboxID, semconv.ConversationID: g.Run, semconv.AgentName: g.Agent,
	}), semconv.ProviderName.String(semconv.Provider(g.Provider)))
	ctx := trace.ContextWithRemoteSpanContext(context.Background(), *x.l.span.Load())
	_, x.span = telemetry.StartOperation(ctx, x.p.o.TracerProvider, semconv.Chat, semconv.RequestModel, model, attrs...)
}
