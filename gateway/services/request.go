package services

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"go.opentelemetry.io/otel/trace"

	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/bound"
	"github.com/workcell-dev/workcell/internal/httpconn"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/internal/telemetry/semconv"
	"github.com/workcell-dev/workcell/sandbox"
)

var (
	// passes matches the forwarded headers of a request. They describe the request and the body. All others are dropped:
	// they can be credentials of another account, or select another account (Impersonate-User), method
	// (X-Http-Method-Override), path (X-Original-Url, Destination), or operation (X-Amz-Target). So is Range, with which
	// an answer could be read in parts in which no secret is found.
	passes = regexp.MustCompile(`\A(Accept|Accept-Language|User-Agent|` +
		`Content-(Type|Encoding|Language|Disposition|Md5|Range)|` +
		`If-(Match|None-Match|Modified-Since|Unmodified-Since)|Prefer|Idempotency-Key|X-Request-Id|Git-Protocol|` +
		`([A-Za-z0-9]+-)+(Version|Beta))\z`)
	// stays matches the dropped headers of an answer: they are for the host's connection or account.
	stays = regexp.MustCompile(`\A(Set-Cookie2?|Alt-Svc|Refresh|Content-Length|Www-Authenticate|Authentication-Info|` +
		`Content-Location|Proxy-.*|Strict-Transport-Security)\z`)
	headerName = regexp.MustCompile("\\A[A-Za-z0-9!#$%&'*+.^_`|~-]+\\z")
	managed    = regexp.MustCompile(`(?i)\A(Host|Connection|Keep-Alive|Proxy-.*|Te|Trailer|Transfer-Encoding|Upgrade|` +
		`Content-Length|Accept-Encoding)\z`)
)

// headerProblem returns the problem of a header name of the operator, empty for none.
func headerProblem(name string) string {
	if headerName.MatchString(name) && !managed.MatchString(name) {
		return ""
	}
	return fmt.Sprintf("the header %q is invalid, or set by the host", sanitize.Clip(name))
}

// refusal is an answer of the gateway itself.
type refusal struct {
	status int
	rule   string // refusing rule; empty if the service failed
	text   string
	hint   string
}

func (r *refusal) Error() string { return r.text }

func refuse(status int, rule, hint, format string, args ...any) *refusal {
	return &refusal{status, rule, fmt.Sprintf(format, args...), hint}
}

// exchange is a request of a sandbox.
type exchange struct {
	s    *Set
	r    *http.Request
	host string // of the service in the sandbox
	path string // below the service, as it is compared and sent
	base string // the URL of the service as the client wrote it
	*grant
	leave   func()      // frees the capacity taken by enter
	rule    string      // allowing rule
	key     http.Header // with credentials
	secrets sanitize.Secrets
	span    trace.Span
}

// ServeHTTP answers a request of the sandbox.
func (s *Set) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{s: s, r: r, leave: func() {}}
	refused := x.resolve()
	ctx, span := telemetry.StartWith(r.Context(), s.g.o.TracerProvider, telemetry.SpanService,
		telemetry.KeySandboxID.String(s.sandbox), telemetry.Text(semconv.ServerAddress, x.host),
		telemetry.Text(semconv.HTTPMethod, r.Method))
	ctx, cancel := context.WithTimeout(ctx, s.g.o.Limits.Time)
	defer cancel()
	x.r, x.span = r.WithContext(ctx), span
	defer httpconn.EndWith(ctx, w)()
	if refused == nil {
		refused = x.allow()
	}
	if refused == nil {
		refused = x.enter(ctx)
		defer func() { x.leave() }()
	}
	if refused != nil {
		switch n := s.denied.Add(1); {
		case n <= audit.MaxRefused:
			_ = x.record(audit.Refused, refused.rule) // if the record is lost, the audit log ends the command
			defer span.End()                          // a span without an end is not exported
		case n == audit.MaxRefused+1:
			s.g.o.Log.Warn("services: further refusals are not recorded", "sandbox", s.sandbox)
		}
		x.answerRefusal(w, refused)
		return
	}
	defer span.End()
	span.SetAttributes(telemetry.KeyDecision.String(audit.Allowed), telemetry.Text(telemetry.KeyRule, x.rule))
	x.r.Body = http.MaxBytesReader(w, x.r.Body, s.g.o.Limits.RequestBytes)
	relay := httpconn.Relay{Transport: s.g.o.Transport, Rewrite: x.rewrite, Answer: x.answer, Failed: x.failed}
	relay.ServeHTTP(w, x.r)
}

// record writes the line of a request into the command's record.
func (x *exchange) record(decision, rule string) error {
	return audit.Note(x.r.Context(), func(r *audit.Record) {
		r.Event, r.Sandbox, r.Host, r.Decision, r.Rule = audit.EventService, x.s.sandbox, x.host, decision, rule
		r.Request = sanitize.Cut(x.r.Method+" "+cmp.Or(x.path, x.r.URL.Path), 1024)
	})
}

// answerRefusal answers, and keeps the refusal for the caller of the command.
func (x *exchange) answerRefusal(w http.ResponseWriter, f *refusal) {
	if f.rule != "" {
		x.span.SetAttributes(telemetry.KeyDecision.String("denied"), telemetry.Text(telemetry.KeyRule, f.rule))
		x.s.refused(sandbox.EgressRefusal{Host: x.host + ":80", Rule: f.rule, Hint: f.hint})
	}
	x.span.SetAttributes(semconv.HTTPStatus.Int(f.status))
	telemetry.Fail(x.span, cmp.Or(f.rule, "service_error"))
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if f.status == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", "1")
	}
	w.WriteHeader(f.status)
	_, _ = fmt.Fprintln(w, strings.TrimSpace("workcell: "+f.text+"\n"+f.hint)) // the client may have gone
}

// resolve finds the service, and the path below it in the only spelling.
func (x *exchange) resolve() *refusal {
	rest, absolute := x.r.RequestURI, x.r.URL.Host != ""
	host, ok := rules.Host(hostname(cmp.Or(x.r.URL.Host, x.r.Host)))
	port := (&url.URL{Host: cmp.Or(x.r.URL.Host, x.r.Host)}).Port()
	x.host = sanitize.Clip(host)
	const form = "Send requests to http://NAME" + suffix + ", or below NAME_BASE_URL."
	if absolute {
		_, rest, _ = strings.Cut(rest, "://")
		rest = rest[strings.IndexAny(rest+"/", "/?#"):]
	}
	if !ok || x.r.URL.User != nil || x.r.URL.Opaque != "" || absolute && x.r.URL.Scheme != "http" {
		return refuse(http.StatusBadRequest, "services: address", form, "this is not the address of a service")
	}
	raw, _, _ := strings.Cut(rest, "?")
	clean, problem := rules.ServicePath(cmp.Or(raw, "/"))
	if problem != "" {
		return refuse(http.StatusBadRequest, "services: path", "The path must have one meaning: "+problem+".",
			"the path is not allowed")
	}
	name, isName := strings.CutSuffix(host, suffix)
	x.path, x.base = clean, "http://"+host
	if isName && port != "" && port != "80" || !isName && (absolute || !loopback(host)) {
		return refuse(http.StatusBadRequest, "services: address", form, "this is not the address of a service")
	}
	if !isName {
		var below string
		name, below, _ = strings.Cut(clean[1:], "/")
		x.path, x.host, x.base = "/"+below, sanitize.Clip(name)+suffix, "http://"+x.r.Host+"/"+name
	}
	if x.grant = x.s.granted[name]; x.grant == nil {
		return refuse(http.StatusForbidden, "services", "The sandbox can use these services: "+
			strings.Join(slices.Sorted(maps.Keys(x.s.granted)), ", ")+".", "the sandbox cannot use %s", x.host)
	}
	return nil
}

// allow finds the allowing rule.
func (x *exchange) allow() *refusal {
	match := func(r rules.ServiceRule) bool { return r.Match(x.r.Method, x.path) }
	i := slices.IndexFunc(x.rules, match)
	switch {
	case i < 0, len(x.own) > 0 && !slices.ContainsFunc(x.own, match):
		rule, allowed := "services."+x.Name+".allow", x.rules
		if i >= 0 {
			rule, allowed = "sandbox."+rule, x.own
		}
		advice := fmt.Sprintf("Allowed: %q. Continue without this request, or report that you need it.", allowed)
		return refuse(http.StatusForbidden, rule, advice,
			"%s %s is not allowed", sanitize.Clip(x.r.Method), sanitize.Clip(x.path))
	case x.r.ContentLength > x.s.g.o.Limits.RequestBytes:
		return x.tooLarge()
	}
	x.rule = x.rules[i].String()
	return nil
}

func (x *exchange) tooLarge() *refusal {
	return refuse(http.StatusRequestEntityTooLarge, "limits.request_bytes", "Send less at once.",
		"the request is larger than %d bytes", x.s.g.o.Limits.RequestBytes)
}

// enter waits for capacity, gets the credentials, and records the request.
func (x *exchange) enter(ctx context.Context) *refusal {
	if !x.grant.rate.Allow() {
		return refuse(http.StatusTooManyRequests, "limits.per_second", "Send fewer requests per second, then try again.",
			"too many requests to %s", x.Name)
	}
	if bound.Enter(ctx, x.slots) != nil {
		return refuse(http.StatusTooManyRequests, "limits.concurrent", "Send fewer requests at once.",
			"too many requests to %s at once", x.Name)
	}
	x.leave = func() { <-x.slots }
	x.key = http.Header{}
	if x.Auth != nil {
		if err := x.Auth(x.key); err != nil {
			x.s.g.o.Log.Error("services: cannot get credentials", "service", x.Name, "error", err)
			return refuse(http.StatusBadGateway, "", "", "the operator's credentials for %s are not available", x.Name)
		}
	}
	x.secrets = httpconn.Secrets(x.key, x.Secrets...)
	if x.record(audit.Allowed, x.rule) != nil {
		return refuse(http.StatusBadGateway, "", "", "cannot record the request")
	}
	return nil
}

// rewrite returns the address and the header of the request to the service.
func (x *exchange) rewrite(in *http.Request) (*url.URL, http.Header) {
	u := *x.URL
	u.RawPath = strings.TrimSuffix(u.EscapedPath(), "/") + x.path
	u.Path, _ = url.PathUnescape(u.RawPath) // ServicePath has checked it
	u.RawQuery = in.URL.RawQuery
	h := http.Header{}
	for name, values := range in.Header {
		if passes.MatchString(name) {
			h[name] = values
		}
	}
	h.Set("Accept-Encoding", "identity") // in other encodings no secret is found
	for _, own := range []http.Header{x.Headers, x.key} {
		for name, values := range own {
			h[http.CanonicalHeaderKey(name)] = values
		}
	}
	return &u, h
}

// answer removes from the service's answer what is not the sandbox's business.
func (x *exchange) answer(res *http.Response) error {
	x.span.SetAttributes(semconv.HTTPStatus.Int(res.StatusCode))
	most := x.s.g.o.Limits.AnswerBytes
	switch encoding := strings.Join(res.Header["Content-Encoding"], ","); {
	case res.StatusCode < 200:
		return fmt.Errorf("unexpected status %d", res.StatusCode)
	case encoding != "" && !strings.EqualFold(encoding, "identity"):
		return refuse(http.StatusBadGateway, "", "", "%s sent a compressed answer, which cannot be searched for credentials",
			x.Name)
	case res.ContentLength > most && x.r.Method != http.MethodHead:
		return refuse(http.StatusBadGateway, "limits.answer_bytes", "Request less at once.",
			"the answer is larger than %d bytes", most)
	}
	h := http.Header{}
	for name, values := range res.Header {
		_, own := x.key[name]
		if own || stays.MatchString(name) || x.secrets.Replace(strings.ToLower(name)) != strings.ToLower(name) {
			continue
		}
		for _, v := range values {
			switch name {
			case "Location":
				var f *refusal
				if v, f = x.location(res, v); f != nil && res.StatusCode/100 == 3 {
					return f
				} else if f != nil { // the address of a created resource
					continue
				}
			case "Link":
				v = strings.ReplaceAll(v, "<"+strings.TrimSuffix(x.URL.String(), "/")+"/", "<"+x.base+"/")
			}
			h.Add(name, x.secrets.Replace(v))
		}
	}
	res.Header, res.Trailer, res.ContentLength = h, nil, -1
	res.Body = x.secrets.Reader(http.MaxBytesReader(nil, res.Body, most)) // if it is larger, the answer breaks off
	return nil
}

// location returns a URL of an answer as the sandbox reaches it. The address of another server is a refusal: it can
// contain credentials.
func (x *exchange) location(res *http.Response, text string) (string, *refusal) {
	to, err := res.Request.URL.Parse(text)
	if err != nil {
		return "", refuse(http.StatusBadGateway, "", "", "%s sent an invalid redirect", x.Name)
	}
	base := strings.TrimSuffix(x.URL.EscapedPath(), "/")
	below, inside := strings.CutPrefix(cmp.Or(to.EscapedPath(), "/"), base+"/")
	clean, problem := rules.ServicePath("/" + below)
	if to.Scheme != x.URL.Scheme || to.Host != x.URL.Host || to.User != nil || !inside || problem != "" {
		host := sanitize.Clip(x.secrets.Replace(to.Hostname()))
		advice := "The service redirects to " + host + ", which is not part of it. " +
			"The operator can define another service for it."
		return "", refuse(http.StatusBadGateway, "services: redirect", advice, "%s redirects to another address", x.Name)
	}
	if to.RawQuery != "" {
		clean += "?" + to.RawQuery
	}
	return x.base + clean, nil
}

// failed answers if the service did not, or if the answer is unusable.
func (x *exchange) failed(w http.ResponseWriter, _ *http.Request, err error) {
	var f *refusal
	switch {
	case errors.As(err, &f):
	case errors.As(err, new(*http.MaxBytesError)):
		f = x.tooLarge()
	default: // the error quotes invalid answers
		x.s.g.o.Log.Warn("services: no answer", "service", x.Name, "error", x.secrets.Replace(err.Error()))
		f = refuse(http.StatusBadGateway, "", "", "%s is unreachable or sent an invalid response", x.Name)
	}
	x.answerRefusal(w, f)
}
