package egress_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/gateway/egress"
	"github.com/workcell-dev/workcell/gateway/services"
	"github.com/workcell-dev/workcell/sandbox"
)

// TestServices: a service is reached by its name, in a tunnel, and at the proxy's address, next to the hosts of the
// list, and by HTTP alone.
func TestServices(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "served "+r.URL.Path) }))
	t.Cleanup(server.Close)
	base, err := url.Parse(server.URL)
	must(t, err)
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	known, err := services.New([]services.Service{{Name: "an-api", URL: base, Allow: []string{"GET /ok/**"}}}, &services.Options{Transport: transport})
	must(t, err)
	r := newRig(t, egress.Options{Services: known}, web)
	list := sandbox.Egress{Allow: []string{"good.example"}, Services: []sandbox.ServiceUse{{Name: "an-api"}}}
	svc, _, err := r.g.Open(id, list)
	must(t, err)
	env := svc.Env("127.0.0.1:99")
	if env["AN_API_BASE_URL"] != "http://127.0.0.1:99/an-api" || env["http_proxy"] != "http://127.0.0.1:99" {
		t.Errorf("%v", env)
	}
	request := func(target, host string) string {
		return "GET " + target + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n"
	}
	connect := func(to string) string { return "CONNECT " + to + " HTTP/1.1\r\n\r\n" }
	for _, tt := range []struct{ name, send, want, rule string }{
		{"to the proxy", request("http://an-api.workcell/ok/a", "x"), "served /ok/a", ""},
		{"in a tunnel", connect("an-api.workcell:80") + request("/ok/a", "an-api.workcell"), "served /ok/a", ""},
		{"at the address", request("/an-api/ok/a", "127.0.0.1:99"), "served /ok/a", ""},
		{"a host next to it", request("http://good.example/x", "good.example"), "GET good.example /x", ""},
		{"another path", request("http://an-api.workcell/no", "x"), " 403 ", "services.an-api.allow"},
		{"another service", request("http://no.workcell/ok/a", "x"), " 403 ", "services"},
		{"another host in a tunnel", connect("an-api.workcell:80") + request("/ok/a", "good.example"), " 400 ", "services: address"},
		{"a proxy in a tunnel", connect("an-api.workcell:80") + request("http://good.example/", "good.example"), " 400 ", "services: address"},
		{"a tunnel in a tunnel", connect("an-api.workcell:80") + connect("good.example:443"), " 400 ", ""},
		{"the service in a tunnel to a host", connect("good.example:80") + request("/ok/a", "an-api.workcell"), " 403 ", "http: Host"},
		{"a tunnel to port 443", connect("an-api.workcell:443"), " 403 ", "services: http"},
		{"TLS", connect("an-api.workcell:80") + string(hello(t, named("an-api.workcell"))), "200 Connection established", "services: http"},
		{"another address", request("/an-api/ok/a", "evil.example"), " 400 ", ""},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", " 400 ", ""},
	} {
		began := time.Now()
		if got := r.talk(tt.send); !strings.Contains(got, tt.want) {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
		refused := r.g.Refused(id, began)
		if tt.rule == "" && len(refused) > 0 || tt.rule != "" && (len(refused) != 1 || refused[0].Rule != tt.rule || refused[0].Hint == "") {
			t.Errorf("%s: refused %+v, want %q", tt.name, refused, tt.rule)
		}
	}
	if got := r.dials(); got != "1.1.1.1:80" {
		t.Errorf("dialed %s", got)
	}
	none, err := egress.New(nil)
	must(t, err)
	if _, _, err := none.Open(id, list); !errors.Is(err, backend.ErrInvalid) || !strings.Contains(err.Error(), "workcell.yaml") {
		t.Errorf("%v", err)
	}
}
