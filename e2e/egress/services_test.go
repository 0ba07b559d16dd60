package egress

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/e2e/enginetest"
	"github.com/workcell-dev/workcell/gateway/egress"
	"github.com/workcell-dev/workcell/gateway/services"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
)

// TestServices calls a service with curl, with and without the proxy, and looks for its credential wherever code inside
// can read: environments, command lines, files, and answers that quote it.
func TestServices(t *testing.T) {
	const canary = "c4n4ry-T0ken-0123456789"
	enginetest.On(t, func(t *testing.T, engine string) {
		d := newDesk(t, engine, egress.Limits{})
		port := server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/away" {
				http.Redirect(w, r, "http://127.0.0.1:1/?"+canary, http.StatusFound)
				return
			}
			_, _ = fmt.Fprintln(w, r.Method, r.URL.Path, r.Header)
		}))
		base, err := url.Parse("http://127.0.0.1:" + port + "/v1")
		must(t, err)
		known, err := services.New([]services.Service{{
			Name: "github", URL: base, Allow: []string{"GET /repos/**", "GET /away"},
			Auth: func(h http.Header) error { h.Set("Authorization", "Bearer "+canary); return nil },
		}}, &services.Options{TracerProvider: d.options.TracerProvider, Log: d.options.Logger})
		must(t, err)
		gateway, err := egress.New(&egress.Options{Services: known, Log: d.options.Logger, TracerProvider: d.options.TracerProvider})
		must(t, err)
		d.options.Egress, d.options.Instance = gateway, "services-"+record.NewID()
		d.m = enginetest.Manager(t, d.b, &d.options)
		s, _, err := d.m.Open(t.Context(), session.UserKey("u"+record.NewID()), session.Request{
			Image: d.netImage(), Egress: sandbox.Egress{Services: []sandbox.ServiceUse{{Name: "github"}}},
		})
		must(t, err)
		for _, how := range []string{"http://github.workcell", "--proxytunnel http://github.workcell", "$GITHUB_BASE_URL", "--noproxy '*' $GITHUB_BASE_URL"} {
			d.prints(s, "curl -sS --fail-with-body "+how+"/repos/acme/x", "GET /v1/repos/acme/x map[")
			d.prints(s, "curl -sS -H 'Authorization: Bearer mine' "+how+"/repos/acme/x", "Authorization:[[key]]")
		}
		for path, rule := range map[string]string{
			"/users": "services.github.allow", "/repos/../users": "services: path", "/repos/%2e%2e/users": "services: path", "/away": "services: redirect",
		} {
			d.fails(s, "curl -sS -L --path-as-is --fail-with-body http://github.workcell"+path, "workcell: ", rule)
		}
		d.fails(s, "curl -sS https://github.workcell/repos/a", "403", "services: http")
		d.fails(s, "curl -sS --fail-with-body http://127.0.0.2:"+port, "", "")
		_, seen := d.sh(s, `curl -sS -L --path-as-is http://github.workcell/away http://github.workcell/repos/x http://github.workcell/%00
env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\0' '\n'; find /workspace /tmp /run /dev/shm -type f -exec cat {} + 2>/dev/null`)
		var spans strings.Builder
		for _, span := range d.spans.GetSpans() {
			fmt.Fprintln(&spans, span.Name, span.Attributes, span.Events, span.Status)
		}
		if !strings.Contains(spans.String(), "services.Request") || !strings.Contains(seen, "GITHUB_BASE_URL=") {
			t.Errorf("nothing was seen: %s%s", &spans, seen)
		}
		for where, text := range map[string]string{"the sandbox": seen, "the spans": spans.String(), "the log": d.log.String()} {
			if strings.Contains(text, canary) {
				t.Errorf("%s has the secret: %s", where, text)
			}
		}
	})
}
