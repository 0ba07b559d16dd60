// Package services lets code in a sandbox without a network send requests to HTTP services, without having the
// credentials for them.
//
// A [Gateway] knows the services of the operator: address, headers, and allowed requests. The egress proxy
// (egress.Options.Services) serves the services of a sandbox (sandbox.Egress.Services) as http://NAME.workcell, and as
// http://127.0.0.1:PORT/NAME for clients without a proxy, which is the value of NAME_BASE_URL in the environment.
//
// A request is checked in one spelling, and forwarded in the same spelling. Of the header, only the description of the
// request and the body passes: other headers can select another path, method, or account. Credentials are removed from
// answers, and no redirect is followed.
//
// Spans: services.Request, for each request.
package services

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/time/rate"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/hint"
	"github.com/workcell-dev/workcell/internal/httpconn"
	"github.com/workcell-dev/workcell/internal/rules"
	"github.com/workcell-dev/workcell/internal/suggest"
	"github.com/workcell-dev/workcell/sandbox"
)

// suffix is the end of the host names of services in a sandbox.
const suffix = ".workcell"

// Service is an HTTP service on the network.
type Service struct {
	Name string   // lower case letters, digits, and '-'
	URL  *url.URL // http or https; requests go to paths below it
	// Allow lists requests, for example "GET /repos/**", with paths below URL. Required.
	Allow []string
	// Headers are added to every request. Values are not secret.
	Headers http.Header
	// Auth sets headers with credentials, which are removed from answers. It is called for every request, and when a
	// sandbox with the service is opened. If nil, the service needs no credentials.
	Auth func(http.Header) error
	// Secrets are parts of the headers from Auth which are also removed from answers, if they have at least 8 bytes.
	Secrets []string
}

// Limits bound the requests of one sandbox to one service. A zero field is the default.
type Limits struct {
	RequestBytes int64         // maximum size of a request's body; default 32 MiB
	AnswerBytes  int64         // maximum size of an answer's body; default 256 MiB
	PerSecond    int           // average; default 100, in bursts ten times as many; others are refused
	Concurrent   int           // maximum number of running requests; default 16; other requests wait
	Time         time.Duration // maximum time of a request, including waiting; default 5 minutes
}

// Options refine New. Zero fields are defaults.
type Options struct {
	Limits         Limits
	Log            *slog.Logger         // has failures; nil discards
	TracerProvider trace.TracerProvider // the global one when nil
	Transport      http.RoundTripper    // one like http.DefaultTransport when nil; must not decompress
}

// Gateway sends requests of sandboxes to services. It is safe for concurrent use.
type Gateway struct {
	o        Options
	services map[string]service
}

// service is a checked Service.
type service struct {
	Service
	rules []rules.ServiceRule
}

// New returns a gateway. Nil options are defaults. For an invalid service, a duplicate name, and a negative limit, the
// error wraps backend.ErrInvalid.
func New(list []Service, o *Options) (*Gateway, error) {
	g := &Gateway{o: *cmp.Or(o, &Options{}), services: map[string]service{}}
	l := &g.o.Limits
	l.RequestBytes, l.AnswerBytes = cmp.Or(l.RequestBytes, 32<<20), cmp.Or(l.AnswerBytes, 256<<20)
	l.PerSecond, l.Concurrent, l.Time = cmp.Or(l.PerSecond, 100), cmp.Or(l.Concurrent, 16), cmp.Or(l.Time, 5*time.Minute)
	if min(l.RequestBytes, l.AnswerBytes, int64(l.PerSecond), int64(l.Concurrent), int64(l.Time)) < 1 {
		return nil, fmt.Errorf("services: limits %+v: %w", *l, backend.ErrInvalid)
	}
	g.o.Log = cmp.Or(g.o.Log, slog.New(slog.DiscardHandler))
	g.o.TracerProvider = cmp.Or(g.o.TracerProvider, otel.GetTracerProvider())
	g.o.Transport = cmp.Or(g.o.Transport, httpconn.NewTransport())
	for _, s := range list {
		switch problems := s.Problems(); {
		case len(problems) > 0:
			return nil, fmt.Errorf("%w: service %s: %w", backend.ErrInvalid, s.Name, problems[0])
		case g.services[s.Name].rules != nil:
			return nil, fmt.Errorf("%w: duplicate service %s", backend.ErrInvalid, s.Name)
		}
		g.services[s.Name] = service{Service: s, rules: parse(s.Allow)}
	}
	return g, nil
}

func parse(allow []string) (list []rules.ServiceRule) {
	for _, text := range allow {
		r, _ := rules.ParseServiceRule(text) // the caller has checked it
		list = append(list, r)
	}
	return list
}

// Problems returns the problems of a service. The fields are url, allow[N], and headers.NAME, and empty for the name.
func (s Service) Problems() (found hint.Problems) {
	if p := rules.CheckServiceName(s.Name); p != nil {
		found = append(found, p)
	}
	switch u := s.URL; {
	case u == nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		found.Add("url", "for example https://api.github.com", "the url of service %s is not an http or https URL", s.Name)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		found.Add("url", "use headers", "the url of service %s contains a password, a query, or a fragment", s.Name)
	default:
		if _, problem := rules.ServicePath(cmp.Or(u.EscapedPath(), "/")); problem != "" {
			found.Add("url", problem, "the url of service %s has an ambiguous path", s.Name)
		}
	}
	if len(s.Allow) == 0 {
		found.Add("allow", `for example allow: ["GET /**"]`, "service %s allows no request", s.Name)
	}
	found = append(found, rules.CheckServiceRules(s.Allow)...)
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		if problem := headerProblem(name); problem != "" {
			found.Add("headers."+name, "", "%s", problem)
		}
	}
	return found
}

// Names returns the names of the services, sorted.
func (g *Gateway) Names() []string {
	if g == nil {
		return nil
	}
	return slices.Sorted(maps.Keys(g.services))
}

// Problems returns the problems of uses: names without a definition by the operator. The fields are services[N].
func (g *Gateway) Problems(uses []sandbox.ServiceUse) (found hint.Problems) {
	for i, use := range uses {
		names := g.Names()
		if !slices.Contains(names, use.Name) {
			advice := "define services in workcell.yaml (docs/guides/services.md)"
			if len(names) > 0 {
				advice = suggest.Hint(use.Name, names)
			}
			found.Add(fmt.Sprintf("services[%d]", i), advice, "unknown service %q", use.Name)
		}
	}
	return found
}

// Ready returns an error if the credentials of a service are not available, such as an unset variable.
func (g *Gateway) Ready(name string) error {
	if s := g.services[name]; s.Auth != nil {
		return s.Auth(http.Header{})
	}
	return nil
}

// Set are the services of one sandbox. It is an [http.Handler] for the requests accepted by [Set.Claims].
type Set struct {
	g       *Gateway
	sandbox string
	refused func(sandbox.EgressRefusal)
	granted map[string]*grant
	denied  atomic.Int64 // refused requests
}

// grant is a service of a sandbox.
type grant struct {
	service
	own   []rules.ServiceRule // of the use; nil allows what the service allows
	rate  *rate.Limiter
	slots chan struct{}
}

// Open returns the services of a sandbox. Without services, it returns nil. refused is called with every refused
// request.
func (g *Gateway) Open(id string, uses []sandbox.ServiceUse, refused func(sandbox.EgressRefusal)) (*Set, error) {
	if len(uses) == 0 {
		return nil, nil
	}
	problems := append((sandbox.Egress{Services: uses}).Problems(), g.Problems(uses)...)
	if len(problems) > 0 {
		return nil, fmt.Errorf("%w: %w", backend.ErrInvalid, problems[0])
	}
	s := &Set{g: g, sandbox: id, refused: refused, granted: map[string]*grant{}}
	for _, use := range uses {
		if err := g.Ready(use.Name); err != nil {
			return nil, fmt.Errorf("%w: no credentials for service %s: %w", backend.ErrInvalid, use.Name, err)
		}
		s.granted[use.Name] = &grant{
			service: g.services[use.Name], own: parse(use.Allow),
			rate:  rate.NewLimiter(rate.Limit(g.o.Limits.PerSecond), 10*g.o.Limits.PerSecond),
			slots: make(chan struct{}, g.o.Limits.Concurrent),
		}
	}
	return s, nil
}

// Env returns the variables by which programs find the services. addr is where the sandbox connects to.
func (s *Set) Env(addr string) map[string]string {
	env := map[string]string{}
	if s != nil {
		for name := range s.granted {
			env[strings.ToUpper(strings.ReplaceAll(name, "-", "_"))+"_BASE_URL"] = "http://" + addr + "/" + name
		}
	}
	return env
}

// Owns reports whether a host is the name of a service, defined or not. host must be in lower case, without a port and
// without a trailing dot.
func (s *Set) Owns(host string) bool { return s != nil && strings.HasSuffix(host, suffix) }

// Claims reports whether a request is for a service: one to the proxy, to the loopback address, or in a tunnel to a
// host.
func (s *Set) Claims(r *http.Request, tunnel string) bool {
	host, _ := rules.Host(hostname(cmp.Or(tunnel, r.URL.Host, r.Host)))
	direct := r.URL.Host == "" && tunnel == ""
	return s != nil && r.Method != http.MethodConnect && (s.Owns(host) || direct && loopback(host))
}

func loopback(host string) bool { return host == "127.0.0.1" || host == "localhost" }

func hostname(host string) string { return (&url.URL{Host: host}).Hostname() }
