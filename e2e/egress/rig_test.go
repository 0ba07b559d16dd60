// Package egress tests network access from real sandboxes without a network, with the usual programs: curl, pip, npm,
// git, and apt. They connect through the gateway to servers of the tests on the host's loopback interface. The names of
// the servers come from the tests' DNS server. The tests of package gateway/egress verify the rules of the gateway.
package egress

import (
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/gateway/egress"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

var must = checktest.Must

// Images built by `make images`.
const (
	netImage    = "workcell/net:12"
	pythonImage = "workcell/python:3.11"
	nodeImage   = "workcell/node:22"
)

// desk is a gateway and its observable output.
type desk struct {
	t      *testing.T
	engine string
	m      *session.Manager
	b      backend.SandboxBackend
	names  *nameServer
	grants string
	spans  *tracetest.InMemoryExporter
	log    *buffertest.Buffer

	options session.Options // options of the managers
}

// manager opens a manager for the desk.
func (d *desk) manager() *session.Manager {
	d.t.Helper()
	m, err := session.NewManager(d.b, &d.options)
	must(d.t, err)
	return m
}

func newDesk(t *testing.T, engine string, limits egress.Limits) *desk {
	t.Helper()
	b := enginetest.Driver(t, engine)
	d := &desk{t: t, b: b, engine: engine, names: newNameServer(t), grants: t.TempDir(), spans: tracetest.NewInMemoryExporter(), log: &buffertest.Buffer{}}
	tracers := sdktrace.NewTracerProvider(sdktrace.WithSyncer(d.spans))
	logger := slog.New(slog.NewTextHandler(d.log, nil))
	gateway, err := egress.New(&egress.Options{
		AllowPrivate: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/24")}, Grants: d.grants, Limits: limits,
		Resolver: d.names.resolver(), Log: logger, TracerProvider: tracers,
	})
	must(t, err)
	d.options = session.Options{Instance: "egress-" + record.NewID(), Logger: logger, TracerProvider: tracers, Egress: gateway}
	d.m = enginetest.Manager(t, b, &d.options)
	return d
}

// ended waits until n connections have ended, which happens after the end of their commands. It returns all spans. The
// log line is the last output of a connection.
func (d *desk) ended(n int) tracetest.SpanStubs {
	d.t.Helper()
	for deadline := time.Now().Add(3 * time.Minute); strings.Count(d.log.String(), "decision=") < n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			d.t.Fatalf("%d connections did not end: %s", n, d.log)
		}
	}
	return d.spans.GetSpans()
}

// netImage returns the image with curl, git, and apt. Local sandboxes use the programs of the host.
func (d *desk) netImage() string {
	if d.engine == "local" {
		return "host"
	}
	return netImage
}

// open opens a sandbox with allowed hosts. The hosts contain the port of a server.
func (d *desk) open(image string, allow ...string) *session.Session {
	d.t.Helper()
	if image == netImage {
		image = d.netImage()
	}
	s, _, err := d.m.Open(d.t.Context(), session.UserKey("u"+record.NewID()), session.Request{Image: image, Egress: sandbox.Egress{Allow: allow}})
	must(d.t, err)
	return s
}

// sh runs a shell line and returns the result and the output on both streams.
func (d *desk) sh(s *session.Session, line string) (sandbox.ExecResult, string) {
	d.t.Helper()
	res, err := s.Exec(d.t.Context(), sandbox.ExecRequest{Command: line})
	must(d.t, err)
	return res, string(res.Stdout.Bytes()) + string(res.Stderr.Bytes())
}

// prints runs a shell line, which must succeed and print the expected text.
func (d *desk) prints(s *session.Session, line, want string) {
	d.t.Helper()
	if res, out := d.sh(s, line); res.ExitCode != 0 || !strings.Contains(out, want) {
		d.t.Errorf("%s: exit code %d: %s\nwant: %s\n%s", line, res.ExitCode, out, want, d.log)
	}
}

// fails runs a shell line, which must fail with the expected output. The refusal must contain a rule.
func (d *desk) fails(s *session.Session, line, want, rule string) {
	d.t.Helper()
	res, out := d.sh(s, line)
	if res.ExitCode == 0 || !strings.Contains(out, want) {
		d.t.Errorf("%s: exit code %d: %s\nwant: %s\n%s", line, res.ExitCode, out, want, d.log)
	}
	for _, r := range res.Refused {
		if strings.Contains(r.Rule, rule) {
			return
		}
	}
	if rule != "" {
		d.t.Errorf("%s: refused %+v, want the rule %s", line, res.Refused, rule)
	}
}

// server starts an HTTP server on the host's loopback interface.
func server(t *testing.T, h http.Handler) (port string) {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return portOf(s.Listener.Addr())
}

func portOf(a net.Addr) string { return strconv.Itoa(a.(*net.TCPAddr).Port) }

// says answers every request with a text.
func says(text string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(text)) })
}
