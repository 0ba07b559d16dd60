package ui_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"
	"golang.org/x/net/html"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/runtrace"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/ui"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/httpguard"
	"github.com/workcell-dev/workcell/internal/runfiles"
	"github.com/workcell-dev/workcell/internal/telemetry"
	"github.com/workcell-dev/workcell/patch"
	"github.com/workcell-dev/workcell/session"
	"github.com/workcell-dev/workcell/session/record"
	"github.com/workcell-dev/workcell/workflow"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

const secret = "0123456789abcdef"

// rig is a server with state.
type rig struct {
	t       *testing.T
	server  *ui.Server
	web     *httptest.Server
	client  *http.Client // logged in
	app     *app.App
	journal runstore.Store
	owner   string // of runs; not alive unless the test joins
}

func newRig(t *testing.T, set ...func(*ui.Options)) *rig {
	t.Helper()
	dir := t.TempDir()
	none := filepath.Join(dir, "workcell.yaml")
	checktest.Must(t, os.WriteFile(none, nil, 0o600))
	// No engine answers.
	env := map[string]string{"HOME": dir, "DOCKER_HOST": "unix://" + dir + "/docker.sock",
		"CONTAINERD_ADDRESS": dir + "/containerd.sock"}
	a := app.New(app.Options{
		Env:    func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		Stderr: io.Discard, StateDir: filepath.Join(dir, "state"), Config: none, Command: "workcell ui",
	})
	j, err := a.OpenJournal(t.Context())
	checktest.Must(t, err)
	t.Cleanup(func() { _ = j.Close() })
	web := httptest.NewUnstartedServer(nil)
	tokens, err := httpguard.NewTokens([]httpguard.Token{{Name: "ana", Secret: secret},
		{Name: "old", Secret: "old" + secret, Expires: time.Now().Add(-time.Hour)},
		{Name: "ana", Secret: "soon" + secret, Expires: time.Now().Add(time.Hour)}})
	checktest.Must(t, err)
	o := ui.Options{
		App: a, Journal: j, URL: "http://" + web.Listener.Addr().String(), Hosts: []string{"workcell.localhost"},
		Tokens: tokens, State: "state.db", Version: "test", Secret: []byte(secret),
	}
	for _, f := range set {
		f(&o)
	}
	r := &rig{t: t, web: web, app: a, journal: j, owner: "owner"}
	if r.server, err = ui.New(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	web.Config.Handler = r.server
	web.Start()
	t.Cleanup(func() {
		if err := r.server.Close(context.Background()); err != nil {
			t.Error(err)
		}
		web.Close()
	})
	r.client = r.browser()
	if res := r.get(r.client, r.server.LoginURL()); res.StatusCode != http.StatusOK {
		t.Fatalf("login: %s", res.Status)
	}
	return r
}

// jar is a cookie jar. It sends all cookies to every port of a host, as browsers do.
type jar map[string]*http.Cookie

// browser returns a client with cookies, without a login.
func (r *rig) browser() *http.Client {
	cookies := jar{}
	return &http.Client{Transport: roundTripper(func(req *http.Request) (*http.Response, error) {
		for _, c := range cookies {
			req.AddCookie(c)
		}
		if _, set := req.Header["Sec-Fetch-Site"]; !set {
			req.Header.Set("Sec-Fetch-Site", "same-origin")
		}
		res, err := http.DefaultTransport.RoundTrip(req)
		if err == nil {
			for _, c := range res.Cookies() {
				cookies[c.Name] = c
			}
		}
		return res, err
	})}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func (r *rig) do(c *http.Client, method, url string, set ...func(*http.Request)) *http.Response {
	r.t.Helper()
	if strings.HasPrefix(url, "/") {
		url = r.web.URL + url
	}
	req, err := http.NewRequestWithContext(r.t.Context(), method, url, nil)
	checktest.Must(r.t, err)
	for _, f := range set {
		f(req)
	}
	res, err := c.Do(req)
	checktest.Must(r.t, err)
	r.t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

func (r *rig) get(c *http.Client, url string, set ...func(*http.Request)) *http.Response {
	r.t.Helper()
	return r.do(c, http.MethodGet, url, set...)
}

// page returns an existing page.
func (r *rig) page(url string) string {
	r.t.Helper()
	res := r.get(r.client, url)
	body := text(r.t, res)
	if res.StatusCode != http.StatusOK {
		r.t.Fatalf("%s: %s\n%s", url, res.Status, body)
	}
	return body
}

func text(t *testing.T, res *http.Response) string {
	t.Helper()
	raw, err := io.ReadAll(res.Body)
	checktest.Must(t, err)
	return string(raw)
}

// visible returns the text of a page without markup.
func visible(t *testing.T, page string) string {
	t.Helper()
	var b strings.Builder
	for n := range parsed(t, page).Descendants() {
		if n.Type == html.TextNode {
			b.WriteString(n.Data)
		}
	}
	return b.String()
}

func parsed(t *testing.T, page string) *html.Node {
	t.Helper()
	doc, err := html.Parse(strings.NewReader(page))
	checktest.Must(t, err)
	return doc
}

// shape returns the elements of a page with the names of their attributes.
func shape(t *testing.T, page string) string {
	t.Helper()
	var b strings.Builder
	for n := range parsed(t, page).Descendants() {
		if n.Type == html.ElementNode {
			b.WriteString("<" + n.Data)
			for _, a := range n.Attr {
				b.WriteString(" " + a.Key)
			}
			b.WriteString(">\n")
		}
	}
	return b.String()
}

func want(t *testing.T, page string, parts ...string) {
	t.Helper()
	seen := strings.Join(strings.Fields(visible(t, page)), " ")
	for _, p := range parts {
		if !strings.Contains(seen, p) {
			t.Errorf("the page does not show %q:\n%s", p, seen)
		}
	}
}

// add appends entries to the journal of a run.
func (r *rig) add(id string, entries ...workflow.Entry) {
	r.t.Helper()
	known, err := r.journal.Entries(r.t.Context(), id)
	if err != nil {
		known = nil
	}
	j := r.journal.For(r.owner, `{"workflow":"/src/wf.yaml","backend":"local"}`)
	for i, e := range entries {
		e.RunID, e.Seq, e.Time = id, int64(len(known)+i+1), time.Now()
		checktest.Must(r.t, j.Append(r.t.Context(), e))
	}
}

// addRun adds a run with one failed command and the output.
func (r *rig) addRun(id, name, output string) {
	r.t.Helper()
	r.add(id,
		workflow.Entry{Kind: workflow.EventRunStarted, Workflow: name, Input: map[string]any{"in": output}},
		workflow.Entry{Kind: workflow.EventStepStarted, Path: "test", Step: "test", Type: workflow.TypeExec, Visit: 1,
			Attempt: 1},
		workflow.Entry{
			Kind: workflow.EventStepFinished, Path: "test", Step: "test", Type: workflow.TypeExec, Visit: 1, Attempt: 1,
			Status: workflow.StatusFailed,
			Error:  &workflow.Error{Code: "exit_code", Message: "exit 3 " + output}, Has: true,
			Output: map[string]any{"stdout": output, "stderr": "", "exit_code": int64(3)},
		},
		workflow.Entry{Kind: workflow.EventRunFinished, Outcome: workflow.Failed,
			Error: &workflow.Error{Code: "exit_code", Message: "exit 3 " + output}})
}

// addResults adds outputs, and a patch from before to after.
func (r *rig) addResults(id, dir string, outputs, before, after patch.Tree, omitted ...patch.Conflict) {
	r.t.Helper()
	kept, err := r.app.RunFiles()
	if err == nil {
		p := patch.Compare(before, after)
		p.Omitted = omitted
		err = kept.Save(id, runfiles.Made{Workspace: dir, Outputs: outputs, Patch: p})
	}
	checktest.Must(r.t, err)
}

func file(content string) patch.Entry { return patch.Entry{Mode: 0o644, Content: []byte(content)} }

// TestLogin verifies that a login link works once, link checkers do not use it up, and only a
// cookie from a login and a valid bearer token open a page.
func TestLogin(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	link := r.server.LoginURL()
	if res := r.do(r.browser(), http.MethodHead, link); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("HEAD: %s", res.Status)
	}
	first := r.browser()
	first.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	res := r.get(first, link)
	if res.StatusCode != http.StatusSeeOther || res.Header.Get("Location") != "/runs" {
		t.Fatalf("login: %s to %q", res.Status, res.Header.Get("Location"))
	}
	c := res.Cookies()[0]
	if !c.HttpOnly || c.SameSite != http.SameSiteLaxMode || c.Domain != "" || c.Secure ||
		!strings.HasPrefix(c.Name, "wc_") {
		t.Errorf("cookie %v", c)
	}
	if res := r.get(first, "/runs"); res.StatusCode != http.StatusOK {
		t.Errorf("with the cookie: %s", res.Status)
	}
	if res := r.get(r.browser(), link); res.StatusCode != http.StatusUnauthorized {
		t.Errorf("second use of the link: %s", res.Status)
	}
	for name, value := range map[string]string{"changed": c.Value + "x",
		"later": strings.Replace(c.Value, ".", ".9", 1), "empty": "", "dots": "..."} {
		if res := r.get(http.DefaultClient, "/runs",
			func(req *http.Request) {
				req.AddCookie(&http.Cookie{Name: c.Name,
					Value: value})
			}); res.StatusCode != http.StatusUnauthorized {
			t.Errorf("%s cookie: %s", name, res.Status)
		}
	}
	for token, status := range map[string]int{secret: 200, "old" + secret: 401, "": 401, "x": 401} {
		if res := r.get(http.DefaultClient, "/runs",
			func(req *http.Request) { req.Header.Set("Authorization", "Bearer "+token) }); res.StatusCode != status {
			t.Errorf("token %q: %s", token, res.Status)
		}
	}
	reader := newRig(t, func(o *ui.Options) {
		o.Tokens, _ = httpguard.NewTokens([]httpguard.Token{{Name: "ana", Secret: "new" + secret}})
	})
	for _, token := range []string{secret, "soon" + secret} {
		c := r.get(first, "/login?t="+token).Cookies()[0]
		if left := time.Until(c.Expires); (left < 2*time.Hour) != (token != secret) {
			t.Errorf("the cookie of token %q is valid for %v", token, left)
		}
		for at, status := range map[*rig]int{r: 200, reader: 401} { // the second server does not have the token
			name := "wc_" + at.web.URL[strings.LastIndexByte(at.web.URL, ':')+1:]
			if res := at.get(http.DefaultClient, "/runs", func(req *http.Request) {
				req.AddCookie(&http.Cookie{Name: name, Value: c.Value})
			}); res.StatusCode != status {
				t.Errorf("cookie of token %q: %s, want %d", token, res.Status, status)
			}
		}
	}
	for key, status := range map[string]int{r.server.Key(): 200, secret: 404, "": 404} {
		res := r.do(http.DefaultClient, http.MethodPost, "/link",
			func(req *http.Request) { req.Header.Set("Authorization", "Bearer "+key) })
		if res.StatusCode != status {
			t.Errorf("link with key %q: %s", key, res.Status)
		}
		if body := text(t, res); status == 200 {
			if res := r.get(r.browser(), body); res.StatusCode != http.StatusOK {
				t.Errorf("link from another process: %s", res.Status)
			}
		}
	}
}

// TestStrangers verifies for each route that requests without a login, from other pages, and for other host names are
// refused, and a read-only server has no route that changes something.
func TestStrangers(t *testing.T) {
	t.Parallel()
	full, reader := newRig(t), newRig(t, func(o *ui.Options) { o.ReadOnly = true })
	full.addRun("run_strangers", "wf", "text")
	reader.addRun("run_strangers", "wf", "text")
	site := func(v string) func(*http.Request) {
		return func(req *http.Request) { req.Header.Set("Sec-Fetch-Site", v) }
	}
	origin := func(v string) func(*http.Request) {
		return func(req *http.Request) {
			req.Header.Set("Sec-Fetch-Site", " ")
			req.Header["Sec-Fetch-Site"] = nil
			req.Header.Set("Origin", v)
		}
	}
	routes := full.server.Routes()
	if len(routes) < 20 {
		t.Fatalf("%d routes", len(routes))
	}
	port := full.web.URL[strings.LastIndexByte(full.web.URL, ':')+1:]
	cookies := map[string]string{
		"stale":      "wc_" + port + "=" + signed(secret, "1.local"),
		"forged":     "wc_" + port + "=" + signed("x", "9999999999.local"),
		"other port": "wc_1=" + signed(secret, "9999999999.local"),
	}
	full.join()
	full.ask("question_strangers", "run_strangers", "", "{}", time.Hour)
	fetch := func(site, mode, dest string) func(*http.Request) {
		return func(req *http.Request) {
			req.Header["Sec-Fetch-Site"] = []string{site}
			req.Header["Sec-Fetch-Mode"], req.Header["Sec-Fetch-Dest"] = []string{mode}, []string{dest}
		}
	}
	for pattern, kind := range routes {
		method, path, _ := strings.Cut(pattern, " ")
		path = strings.NewReplacer("{$}", "", "{run}", "run_strangers", "{path...}", "a/b", "{seq}", "3", "{field}",
			"stdout", "{id}", "sbx_1", "{answer}", "allow", "{exec}", "exec_1", "{hash}", "x", "{name}", "y").Replace(path)
		check := func(name string, c *http.Client, status int, set ...func(*http.Request)) {
			t.Helper()
			res := full.do(c, method, path, set...)
			if res.StatusCode != status || !res.Close && kind != "opens" {
				t.Errorf("%s, %s: %s, want %d; closes the connection: %v", pattern, name, res.Status, status, res.Close)
			}
			if page := text(t, res); strings.Contains(page, "state.db") || strings.Contains(page, "(1)") {
				t.Errorf("%s, %s: a stranger sees %s", pattern, name, page)
			}
		}
		check("foreign host", full.client, http.StatusMisdirectedRequest,
			func(req *http.Request) { req.Host = "attacker.example" })
		if kind != "opens" {
			check("no login", full.browser(), http.StatusUnauthorized)
			for name, value := range cookies {
				check(name+" cookie", full.browser(), http.StatusUnauthorized,
					func(req *http.Request) { req.Header.Set("Cookie", value) })
			}
		} else if method == http.MethodGet {
			check("no login", full.browser(), map[string]int{"/healthz": 200, "/login": 401, "/assets/x/y": 404}[path])
		}
		for name, set := range map[string]func(*http.Request){
			"image of a page":       fetch("cross-site", "no-cors", "image"),
			"image on another port": fetch("same-site", "no-cors", "image"),
			"script of a page":      fetch("cross-site", "cors", "empty"),
			"frame":                 fetch("same-site", "navigate", "iframe"),
		} {
			check(name, full.client, http.StatusForbidden, set)
		}
		if method == http.MethodPost || kind == "live" {
			check("other site", full.client, http.StatusForbidden, site("cross-site"))
			check("other port", full.client, http.StatusForbidden, site("same-site"))
			check("other origin", full.client, http.StatusForbidden, origin("http://attacker.example"))
			check("no origin", full.client, http.StatusForbidden,
				func(req *http.Request) { req.Header["Sec-Fetch-Site"] = nil })
			check("null origin", full.client, http.StatusForbidden, origin("null"))
		}
		if kind == "acts" {
			if res := reader.do(reader.client, method, path); res.StatusCode != http.StatusNotFound &&
				res.StatusCode != http.StatusMethodNotAllowed {
				t.Errorf("%s, read-only: %s", pattern, res.Status)
			}
		}
	}
	link := fetch("cross-site", "navigate", "document")
	if res := full.get(full.client, "/runs", link); res.StatusCode != http.StatusOK {
		t.Errorf("a link of another page: %s", res.Status)
	}
	for request, status := range map[string]string{
		"GET /runs HTTP/1.0\r\nHost: localhost":                                                "HTTP/1.0 400",
		"GET http://localhost/runs HTTP/1.1\r\nHost: localhost":                                "HTTP/1.1 400",
		"GET /runs HTTP/1.1\r\nHost: localhost\r\nHost: attacker.example":                      "HTTP/1.1 400",
		"GET /runs HTTP/1.1\r\nHost: attacker.example\r\nX-Forwarded-Host: localhost":          "HTTP/1.1 421",
		"GET /runs HTTP/1.1\r\nHost: localhost.attacker.example":                               "HTTP/1.1 421",
		"GET /runs HTTP/1.1\r\nHost:":                                                          "HTTP/1.1 421",
		"PUT /runs/run_strangers/cancel HTTP/1.1\r\nHost: localhost":                           "HTTP/1.1 401",
		"GET //login HTTP/1.1\r\nHost: localhost":                                              "HTTP/1.1 307",
		"GET /login/../runs HTTP/1.1\r\nHost: localhost":                                       "HTTP/1.1 401",
		"GET /runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer\r\nCookie: wc_" + port: "HTTP/1.1 401",
	} {
		if got := full.raw(request + "\r\nConnection: close\r\n\r\n"); !strings.HasPrefix(got, status) {
			t.Errorf("%q: %q, want %s", request, got, status)
		}
	}
	if body := reader.page("/runs/run_strangers"); strings.Contains(body, "/cancel") {
		t.Error("a read-only page has a form that changes something")
	}
}

// signed returns the value of a cookie without a token.
func signed(key, text string) string {
	mac, none := hmac.New(sha256.New, []byte(key)), sha256.Sum256(nil)
	mac.Write(append([]byte(text), none[:]...)) // never fails
	return hex.EncodeToString(mac.Sum(nil)) + "." + text
}

// raw sends the bytes of a request and returns the answer. The server or its limits must close the connection.
func (r *rig) raw(request string) string {
	r.t.Helper()
	c, err := net.Dial("tcp", r.web.Listener.Addr().String())
	checktest.Must(r.t, err)
	defer c.Close()
	_, err = io.WriteString(c, request)
	checktest.Must(r.t, errors.Join(err, c.SetReadDeadline(time.Now().Add(time.Minute))))
	got, err := io.ReadAll(c)
	checktest.Must(r.t, err)
	return string(got)
}

// TestGuesses verifies that guesses of tokens and cookies have a limit, also through a proxy.
func TestGuesses(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *ui.Options) { o.Proxies = []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")} })
	for address, header := range map[string]string{"127.0.0.2:1": "Authorization", "192.0.2.7:1": "Cookie"} {
		refused := false
		synctest.Test(t, func(*testing.T) { // stops the clock
			for i := 0; i < 1000 && !refused; i++ {
				req := httptest.NewRequest(http.MethodGet, "/runs", nil)
				req.Host, req.RemoteAddr = "localhost", address
				req.Header.Set(header, fmt.Sprintf("Bearer %d", i))
				// A proxy adds a line.
				req.Header["X-Forwarded-For"] = []string{fmt.Sprintf("198.51.100.%d", i), "203.0.113.9"}
				w := httptest.NewRecorder()
				r.server.ServeHTTP(w, req)
				refused = w.Code == http.StatusTooManyRequests
			}
		})
		if !refused {
			t.Errorf("no limit for the header %s", header)
		}
	}
}

// TestAllowedActions verifies that a server permits only the allowed actions.
func TestAllowedActions(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *ui.Options) { o.Allow = []string{"cancel"} })
	r.addRun("run_some", "wf", "text")
	for path, want := range map[string]int{"cancel": http.StatusConflict, "apply": http.StatusNotFound} {
		if res := r.do(r.client, http.MethodPost, "/runs/run_some/"+path); res.StatusCode != want {
			t.Errorf("%s: %s, want %d", path, res.Status, want)
		}
	}
}

// leaving is a store whose client disconnects when a run is taken.
type leaving struct {
	runstore.Store
	leave func()
}

func (l leaving) Take(ctx context.Context, id, from, to string) error {
	defer l.leave()
	return l.Store.Take(ctx, id, from, to)
}

// TestClosedTab verifies that a run is canceled to the end even if the client disconnects.
func TestClosedTab(t *testing.T) {
	t.Parallel()
	ctx, leave := context.WithCancel(t.Context())
	r := newRig(t, func(o *ui.Options) { o.Journal = leaving{o.Journal, leave} })
	r.owner = "" // queued
	r.add("run_1", workflow.Entry{Kind: workflow.EventRunStarted, Workflow: "wf"})
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/runs/run_1/cancel", http.NoBody)
	req.Host = "localhost"
	req.Header.Set("Authorization", "Bearer "+secret)
	r.server.ServeHTTP(httptest.NewRecorder(), req)
	if run, err := r.journal.Run(t.Context(), "run_1"); err != nil || run.Outcome != workflow.Cancelled {
		t.Errorf("the run ended as %q, %v", run.Outcome, err)
	}
}

// TestProxy verifies that the header with the user's name counts only from the reverse proxy, and that only the proxy
// and this host can connect.
func TestProxy(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *ui.Options) {
		o.Proxies, o.UserName = []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")}, "X-User"
		o.Hosts = append(o.Hosts, "pages.example")
	})
	for name, test := range map[string]struct {
		method, from, host, site string
		users                    []string
		want                     int
	}{
		"user":          {"GET", "192.0.2.7:1", "pages.example", "", []string{"ana"}, http.StatusOK},
		"no user":       {"GET", "192.0.2.7:1", "pages.example", "", nil, http.StatusUnauthorized},
		"two users":     {"GET", "192.0.2.7:1", "pages.example", "", []string{"eve", "ana"}, http.StatusUnauthorized},
		"reserved name": {"GET", "192.0.2.7:1", "pages.example", "", []string{httpguard.Local}, http.StatusUnauthorized},
		"other host":    {"GET", "203.0.113.9:1", "", "", []string{"ana"}, http.StatusForbidden},
		"this host":     {"GET", "127.0.0.1:1", "", "", []string{"ana"}, http.StatusUnauthorized},
		"foreign name":  {"GET", "192.0.2.7:1", "attacker.example", "", []string{"ana"}, http.StatusMisdirectedRequest},
		"own page":      {"POST", "192.0.2.7:1", "pages.example", "same-origin", []string{"ana"}, http.StatusSeeOther},
		"other page":    {"POST", "192.0.2.7:1", "pages.example", "cross-site", []string{"ana"}, http.StatusForbidden},
		"rebound name": {"GET", "192.0.2.7:1", "pages.example,attacker.example", "", []string{"ana"},
			http.StatusMisdirectedRequest},
		"page without origin": {"POST", "192.0.2.7:1", "pages.example", "", []string{"ana"}, http.StatusForbidden},
	} {
		req := httptest.NewRequest(test.method, map[string]string{"GET": "/runs", "POST": "/theme"}[test.method], nil)
		req.Host, req.RemoteAddr, req.Header["X-User"] = "127.0.0.1", test.from, test.users
		req.Header.Set("X-Forwarded-Host", test.host)
		if test.site != "" {
			req.Header.Set("Sec-Fetch-Site", test.site)
		}
		w := httptest.NewRecorder()
		r.server.ServeHTTP(w, req)
		if w.Code != test.want {
			t.Errorf("%s: %d, want %d", name, w.Code, test.want)
		}
	}
}

// hostile is harmful text for a page or a terminal.
const hostile = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'`{{.Secret}}{{template \"x\"}}" +
	"\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m\u202etxet\u2066\u200b\x00\xff\xfe\r\nend"

// TestHostileText verifies that text of runs, files, and errors is only text: pages have the same elements as with
// harmless text, and no control characters.
func TestHostileText(t *testing.T) {
	t.Parallel()
	pages := map[string][]string{} // shapes by page, of the harmless and the hostile run
	for name, words := range map[string]string{"aa": "harmless\r\nend", "a<b>\"'&\u202e": hostile} {
		r := newRig(t)
		r.addRun("run_text", words, strings.Repeat("line\n", 2)+words)
		plain := strings.NewReplacer("\x00", "", "\xff", "", "\xfe", "").Replace(words) // otherwise it is binary
		tree := patch.Tree{name + "é.txt": file("one\n" + plain + "\n"), "b.svg": file("<svg onload=alert(1)>" + plain)}
		tree["javascript:alert(1)\r\nX-Y: "+name] = patch.NewLink([]byte(words))
		r.addResults("run_text", "/src/"+name, tree, patch.Tree{name + "é.txt": file("one\ntwo\n")}, tree,
			patch.Conflict{Path: words, Reason: words})
		r.addTrace("run_text", words)
		r.add("run_'$(x)"+name, workflow.Entry{Kind: workflow.EventRunStarted, Workflow: words},
			workflow.Entry{Kind: workflow.EventStepStarted, Path: plain, Step: plain, Type: workflow.TypeExec, Agent: words,
				Visit: 1, Attempt: 1, Checkpoint: &workflow.Checkpoint{}})
		for i, at := range []string{
			"/runs", "/runs?workflow=" + url.QueryEscape(words) + "&q=exit", "/runs/run_text", "/runs/run_text?at=test@1.1",
			"/runs/run_text/changes", "/runs/run_text/changes?file=1",
			"/runs/run_text/files?file=b.svg", "/runs/run_text/journal", "/login?t=" + "%3Cscript%3E",
			"/runs/run_text?all=1", "/runs/run_text?all=1&at=0000000000000002", "/runs/run_text/changes?file=2",
			"/runs/" + url.PathEscape("run_'$(x)"+name),
			"/runs/" + url.PathEscape("run_'$(x)"+name) + "?at=" + url.QueryEscape(plain+"@1.1"),
			"/runs/run_text/files?file=" + url.QueryEscape(words), "/runs/" + url.PathEscape(words), "/runs/run_text/apply",
		} {
			res := r.get(r.client, at)
			body := text(t, res)
			pages[strconv.Itoa(i)] = append(pages[strconv.Itoa(i)], shape(t, body))
			labels(t, at, body)
			local(t, at, body)
			for _, c := range body {
				if c < ' ' && c != '\n' && c != '\t' || c == 0x7f || c == '\u202e' || c == '\u2066' || c == '\u200b' {
					t.Errorf("%s contains %U", at, c)
				}
			}
			if words == hostile && at == "/runs/run_text" {
				want(t, body, "alert(1)", "{{.Secret}}", `\x1b]0;title\x07`, `\u202etxet`, `\xff\xfe`)
			}
		}
		res := r.get(r.client, "/runs/run_text/raw/b.svg?inline=1")
		if res.Header.Get("Content-Type") != "application/octet-stream" ||
			!strings.HasPrefix(res.Header.Get("Content-Disposition"), "attachment") ||
			!strings.Contains(res.Header.Get("Content-Security-Policy"), "sandbox") {
			t.Errorf("an SVG image has the headers %v", res.Header)
		}
		res = r.get(r.client, "/runs/run_text/raw/"+url.PathEscape("javascript:alert(1)\r\nX-Y: "+name))
		if res.StatusCode != http.StatusOK || res.Header.Get("X-Y") != "" || text(t, res) != words ||
			strings.Contains(res.Header.Get("Content-Disposition"), "%E2%80%AE") {
			t.Errorf("a file with a hostile name: %s %v", res.Status, res.Header)
		}
	}
	for at, shapes := range pages {
		a := strings.ReplaceAll(shapes[0], "<span class>\n", "")
		b := strings.ReplaceAll(shapes[1], "<span class>\n", "") // colors
		if diff := cmp.Diff(strings.Fields(a), strings.Fields(b)); diff != "" {
			t.Errorf("the elements of %s depend on the text:\n%s", at, diff)
		}
	}
}

// local verifies that a page has links only to this server, and commands to copy are words of a shell.
func local(t *testing.T, at, page string) {
	t.Helper()
	for n := range parsed(t, page).Descendants() {
		for _, a := range n.Attr {
			switch a.Key {
			case "href", "src", "action":
				u, err := url.Parse(a.Val)
				if err != nil || u.Scheme+u.Host != "" || strings.HasPrefix(u.Path, "//") ||
					!strings.ContainsAny(a.Val[:1], "/?#") {
					t.Errorf("%s leads to %q", at, a.Val)
				}
			case "data-copy":
				if strings.Contains(strings.ReplaceAll(a.Val, `'run_'\''$(x)`, ""), "$(x)") {
					t.Errorf("%s has the command %s", at, a.Val)
				}
			}
		}
	}
}

// addTrace adds a trace with a span below the step of addRun.
func (r *rig) addTrace(id, words string) {
	r.t.Helper()
	type attr = map[string]any
	var attrs []attr
	for key, value := range map[attribute.Key]string{
		telemetry.KeyStepPath: "test", telemetry.KeyVisit: "1", telemetry.KeyAttempt: "1",
	} {
		attrs = append(attrs, attr{"key": key, "value": attr{"stringValue": value}})
	}
	trace := strings.Repeat("1", 32)
	spans := []attr{
		{"traceId": trace, "spanId": "0000000000000001", "name": telemetry.SpanWorkflowStep, "attributes": attrs},
		{"traceId": trace, "spanId": "0000000000000002", "parentSpanId": "0000000000000001", "name": words,
			"attributes": []attr{{"key": words, "value": attr{"stringValue": words}}}, "events": []attr{{"name": words}}},
	}
	raw, err := json.Marshal(attr{"resourceSpans": []attr{{"scopeSpans": []attr{{"spans": spans}}}}})
	kept, dirErr := r.app.RunFiles()
	checktest.Must(r.t, errors.Join(err, dirErr, os.WriteFile(kept.Of(id, runtrace.FileName), raw, 0o600)))
}

// TestHeaders verifies the headers to keep pages apart, the absence of inline code and styles, and the small size of
// the assets.
func TestHeaders(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.addRun("run_headers", "wf", "out")
	for _, at := range []string{"/runs", "/runs/run_headers", "/runs/none", "/login", "/sandboxes"} {
		res := r.get(r.client, at)
		h := res.Header
		csp := h.Get("Content-Security-Policy")
		if !strings.HasPrefix(csp, "default-src 'none'; script-src 'self'; style-src 'self'") ||
			strings.Contains(csp, "unsafe") || h.Get("Cache-Control") != "no-store" ||
			h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "no-referrer" ||
			h.Get("Cross-Origin-Opener-Policy") != "same-origin" {
			t.Errorf("%s has the headers %v", at, h)
		}
		total := 0
		for n := range parsed(t, text(t, res)).Descendants() {
			for _, a := range n.Attr {
				if strings.HasPrefix(a.Key, "on") || a.Key == "style" || n.Data == "style" {
					t.Errorf("%s has inline code: %s %s", at, n.Data, a.Key)
				}
				if (a.Key == "src" || a.Key == "href") && strings.HasPrefix(a.Val, "/assets/") {
					req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, r.web.URL+a.Val, nil)
					checktest.Must(t, err)
					req.Header.Set("Accept-Encoding", "gzip")
					res, err := http.DefaultTransport.RoundTrip(req)
					checktest.Must(t, err)
					total += len(text(t, res))
					if err := res.Body.Close(); err != nil || res.StatusCode != http.StatusOK ||
						!strings.Contains(res.Header.Get("Cache-Control"), "immutable") {
						t.Errorf("%s: %s, %v", a.Val, res.Status, err)
					}
				}
			}
		}
		if total == 0 || total > 30<<10 {
			t.Errorf("%s loads %d bytes", at, total)
		}
	}
	tag := r.get(r.client, "/runs").Header.Get("ETag")
	if res := r.get(r.client, "/runs", func(req *http.Request) {
		req.Header.Set("If-None-Match",
			tag)
	}); res.StatusCode != http.StatusNotModified {
		t.Errorf("an unchanged page: %s", res.Status)
	}
	for _, back := range []string{"https://attacker.example/x", "//attacker.example", `/\attacker.example`, "/runs"} {
		res := r.do(r.client, http.MethodPost, "/theme?", func(req *http.Request) {
			req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			req.Body = io.NopCloser(strings.NewReader("back=" + back))
		})
		if at := res.Request.URL; at.Path != "/runs" || !strings.Contains(at.Host, "127.0.0.1") {
			t.Errorf("a theme leads to %s", at)
		}
	}
	if !strings.Contains(r.page("/runs"), `data-theme="light"`) {
		t.Error("the theme is not kept")
	}
}

// TestRuns verifies the list of runs, the filters, and the failed step on the page of a failed run.
func TestRuns(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	want(t, r.page("/runs"), "No runs yet", "workcell run FILE")
	for i := range 60 {
		r.addRun(fmt.Sprintf("run_list%02d", i), fmt.Sprintf("wf%d", i%2), "out")
	}
	first := r.page("/runs")
	if n := strings.Count(first, `<tr id="run-`); n != 50 {
		t.Errorf("%d rows", n)
	}
	older := first[strings.Index(first, "/runs?before="):]
	older = strings.ReplaceAll(older[:strings.IndexByte(older, '"')], "&amp;", "&")
	if n := strings.Count(r.page(older), `<tr id="run-`); n != 10 {
		t.Errorf("%d older rows", n)
	}
	if n := strings.Count(r.page("/runs?workflow=wf1"), `<tr id="run-`); n != 30 {
		t.Errorf("%d rows of a workflow", n)
	}
	want(t, r.page("/runs?state=succeeded"), "No run matches")
	want(t, r.page("/runs/run_list07"), "✗ failed", "exit 3 out", "exit code", "stdout", "cost not known",
		"no spans are stored")
	want(t, r.page("/runs/run_list07/journal"), "step_finished")
	if res := r.get(r.client, "/runs/run_none"); res.StatusCode != http.StatusNotFound {
		t.Errorf("unknown run: %s", res.Status)
	}
	for field, want := range map[string]string{"stdout": "out", "output": "{", "entry": "{", "setup.bat": "<!doctype"} {
		got := strings.TrimSpace(text(t, r.get(r.client, "/runs/run_list07/steps/3/"+field)))
		if !strings.HasPrefix(got, want) {
			t.Errorf("download of %s: %q", field, got)
		}
	}
}

// TestRunningAgent verifies that the page of a running agent shows its answers and tool calls, and durations grow
// only while the run's process is alive.
func TestRunningAgent(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	place, err := r.app.State()
	checktest.Must(t, err)
	records, err := place.OpenRecords(t.Context())
	checktest.Must(t, err)
	owner, leave, err := records.Join(t.Context())
	checktest.Must(t, err)
	t.Cleanup(func() { _ = records.Close() })
	r.owner = owner
	e := workflow.Entry{Path: "fix", Step: "fix", Type: workflow.TypeAgent, Agent: "fixer", Visit: 1, Attempt: 1}
	began, turn, call := e, e, e
	began.Kind, turn.Kind, call.Kind = workflow.EventStepStarted, workflow.EventStepProgress, workflow.EventStepProgress
	turn.Conversation = []byte(`{"turn":{"number":1,"messages":[{"content":[{"text":"go"}],"role":"user"}],` +
		`"answer":{"content":[{"text":"I look <b>first</b>."},` +
		`{"toolRequest":{"name":"read","ref":"1","input":{"path":"a.py"}}},` +
		`{"toolRequest":{"name":"list","ref":"2"}}],"role":"model"}}}`)
	call.Conversation = []byte(`{"call":{"turn":1,"ref":"1","result":{"output":{"text":"print"}}}}`)
	r.add("run_agent", workflow.Entry{Kind: workflow.EventRunStarted, Workflow: "wf"}, began, turn, call)
	page := r.page("/runs/run_agent")
	want(t, page, "● running", "fixer", "I look <b>first</b>.", "read", "list")
	if n := strings.Count(page, "k-live"); n != 2 { // the step and the call without a result
		t.Errorf("%d running rows", n)
	}
	want(t, r.page("/runs/run_agent?at=fix@1.1/2"), "Arguments", `"path": "a.py"`, "Result", `"text": "print"`)
	checktest.Must(t, leave())
	page = r.page("/runs/run_agent")
	want(t, page, "‖ interrupted", "workcell runs resume run_agent")
	if strings.Contains(page, "data-since") {
		t.Error("a duration grows after the process has exited")
	}
}

// TestTimelineFolds verifies that a long timeline has bounded pages.
func TestTimelineFolds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	entries := []workflow.Entry{{Kind: workflow.EventRunStarted, Workflow: "loop"}}
	for i := range 700 {
		e := workflow.Entry{Path: "s", Step: "s", Type: workflow.TypeExec, Visit: i + 1, Attempt: 1}
		began, ended := e, e
		began.Kind, ended.Kind, ended.Status = workflow.EventStepStarted, workflow.EventStepFinished, workflow.StatusSucceeded
		entries = append(entries, began, ended)
	}
	r.add("run_long", entries...)
	page := r.page("/runs/run_long")
	want(t, page, "This run has many rows")
	if len(page) > 1<<20 {
		t.Errorf("the page has %d bytes", len(page))
	}
	if n := strings.Count(r.page("/runs/run_long/journal"), "<details class=\"entry\""); n != 200 {
		t.Errorf("%d entries", n)
	}
}

// TestLongRun verifies that the bars of a run of many months have their places.
func TestLongRun(t *testing.T) {
	t.Parallel()
	const day = 24 * time.Hour
	if got := ui.Bar(150*day, 300*day); got != 500 {
		t.Errorf("half of the run is %d of 1000", got)
	}
}

// TestApply verifies that the preview of the changes shows the effect of applying them, a changed file is left
// alone, and applying twice has no effect.
func TestApply(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	checktest.Must(t, err)
	before := patch.Tree{"cart.py": file("a\nb\nc\n"), "both.txt": file("old\n"), "logo": file("\x00\x01")}
	after := patch.Tree{"cart.py": file("a\nB\nc\n"), "both.txt": file("new\n"), "logo": file("\x00\x02"),
		"added.txt": file("hello\n")}
	if res, err := before.Write(dir, nil, false); err != nil || len(res.Conflicts) > 0 {
		t.Fatal(err, res)
	}
	checktest.Must(t, os.WriteFile(filepath.Join(dir, "both.txt"), []byte("mine\n"), 0o644))
	r.addRun("run_apply", "wf", "out")
	r.addResults("run_apply", dir, nil, before, after)
	page := r.page("/runs/run_apply/changes")
	want(t, page, "4 files", dir, "cart.py", "Apply…")
	want(t, r.page("/runs/run_apply/changes?file=2"), "b", "B")
	want(t, r.page("/runs/run_apply/changes?file=3"), "not shown as text")
	plan := r.page("/runs/run_apply/apply")
	want(t, plan, "added.txt as in the run", "both.txt left alone", "cart.py as in the run", "Apply 3 files")
	if _, err := os.Stat(filepath.Join(dir, "added.txt")); err == nil {
		t.Fatal("the preview has written a file")
	}
	_, seen, _ := strings.Cut(plan, `name="seen" value="`)
	seen, _, _ = strings.Cut(seen, `"`)
	r.addResults("run_apply", dir, nil, before, patch.Tree{"cart.py": file("other\n")})
	if res := r.do(r.client, http.MethodPost, "/runs/run_apply/apply", func(req *http.Request) {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Body = io.NopCloser(strings.NewReader("seen=" + seen))
	}); res.StatusCode != http.StatusConflict {
		t.Errorf("other changes than in the preview: %s", res.Status)
	}
	r.addResults("run_apply", dir, nil, before, after)
	done := text(t, r.do(r.client, http.MethodPost, "/runs/run_apply/apply", func(req *http.Request) {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		req.Body = io.NopCloser(strings.NewReader("seen=" + seen))
	}))
	want(t, done, "added.txt written", "both.txt left alone", "cart.py written")
	for name, content := range map[string]string{"added.txt": "hello\n", "both.txt": "mine\n", "cart.py": "a\nB\nc\n"} {
		if got, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(got) != content {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	again := text(t, r.do(r.client, http.MethodPost, "/runs/run_apply/apply"))
	want(t, again, "added.txt already has the changes")
	if strings.Contains(again, "data-events") {
		t.Error("a refresh would replace the result")
	}
	if got := text(t, r.get(r.client, "/runs/run_apply/patch?file=2")); !strings.Contains(got, "-b\n+B\n") ||
		strings.Contains(got, "added.txt") {
		t.Errorf("patch: %s", got)
	}
	want(t, r.page("/runs/run_apply/changes?filter=cart"), "cart.py")
}

// TestMarks verifies that changed lines are marked where they differ.
func TestMarks(t *testing.T) {
	t.Parallel()
	p := patch.Compare(patch.Tree{"f": file("same\nsum(a)\nitems[1:]\ngone\nx\nend\nold")},
		patch.Tree{"f": file("same\nsum(b)\nitems\nx\nmore\nend\nold\n")})
	want := []string{
		"1 1 same[]", "2 0 delsum([a])", "3 0 delitems[[1:]]", "4 0 delgone[]",
		"0 2 addsum([b])", "0 3 additems[]", "5 4 x[]", "0 5 addmore[]",
		"6 6 end[]", "7 0 delold[] (no newline at the end of the file)", "0 7 addold[]",
	}
	if diff := cmp.Diff(want, ui.Marks(p.Changes[0].Hunks()[0])); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

// TestLargeChange verifies that a large change is cut, the page reports it, and all lines can be shown.
func TestLargeChange(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.addRun("run_large", "wf", "out")
	r.addResults("run_large", "/src", nil, patch.Tree{}, patch.Tree{"big.txt": file(strings.Repeat("x\n", 5000))})
	want(t, r.page("/runs/run_large/changes"), "3000 more lines are not shown")
	long := strings.Repeat("\u202e", 1<<17)
	for i := range 2 {
		r.addRun(fmt.Sprintf("run_long%d", i), long, long)
	}
	r.addResults("run_long0", "/src", nil, patch.Tree{"long": file(long)}, patch.Tree{"long": file(long + "x")})
	want(t, r.page("/runs/run_long0/changes"), "2 long lines shortened", "(391169 more bytes)")
	for _, at := range []string{"/runs", "/runs/run_long0", "/runs/run_long0?at=none", "/runs/run_long0/journal",
		"/runs/run_long0/changes"} {
		if n := len(r.page(at)); n > 1<<18 {
			t.Errorf("%s has %d bytes", at, n)
		}
	}
	if n := strings.Count(r.page("/runs/run_large/changes?file=0&whole=1"), `<tr class="add">`); n != 5000 {
		t.Errorf("%d lines", n)
	}
}

// TestFiles verifies that outputs are shown in parts, and only images are shown as such.
func TestFiles(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.addRun("run_files", "wf", "out")
	png := "\x89PNG\r\n\x1a\n" + strings.Repeat("\x00", 32)
	r.addResults("run_files", "", patch.Tree{
		"dist/a b.txt": file(strings.Repeat("0123456789abcde\n",
			20_000)), "logo.png": file(png), "data.bin": file("\x00\x01\x02"),
	}, nil, nil)
	want(t, r.page("/runs/run_files/files"), "dist/a b.txt", "logo.png", "Select a file")
	first := r.page("/runs/run_files/files?file=dist/a+b.txt")
	want(t, first, "Bytes 0 to 262144 of 320000", "next part")
	want(t, r.page("/runs/run_files/files?file=dist/a+b.txt&offset=262144"), "Bytes 262144 to 320000 of 320000",
		"previous part")
	want(t, r.page("/runs/run_files/files?file=data.bin"), "This file is not text", "00 01 02")
	if !strings.Contains(r.page("/runs/run_files/files?file=logo.png"),
		`<img src="/runs/run_files/raw/logo.png?inline=1"`) {
		t.Error("the image is not shown")
	}
	res := r.get(r.client, "/runs/run_files/raw/logo.png?inline=1")
	if res.Header.Get("Content-Type") != "image/png" || text(t, res) != png {
		t.Errorf("image: %v", res.Header)
	}
	if res := r.get(r.client, "/runs/run_files/raw/none"); res.StatusCode != http.StatusNotFound {
		t.Errorf("missing file: %s", res.Status)
	}
}

// TestBrokenDownload verifies that a download whose file cannot be read to the end fails in the browser.
func TestBrokenDownload(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	part := io.MultiReader(strings.NewReader(strings.Repeat("x", 1<<20)), iotest.ErrReader(io.ErrClosedPipe))
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r.server.Send(w, req, part)
	}))
	t.Cleanup(web.Close)
	n, err := io.Copy(io.Discard, r.get(web.Client(), web.URL).Body)
	if err == nil {
		t.Errorf("%d bytes are a whole file", n)
	}
}

// TestIncompleteForm verifies that an incomplete form changes nothing. An incomplete body of any request occupies the
// connection only for a limited time.
func TestIncompleteForm(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(o *ui.Options) { o.SetBodyTimeout(100 * time.Millisecond) })
	for request, status := range map[string]string{
		"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-www-form-urlencoded": "400",
		"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain":                        "400",
		"POST /login HTTP/1.1\r\nHost: other.example":                                                "421",
		"GET /login HTTP/1.1\r\nHost: localhost":                                                     "401",
	} {
		got := r.raw(request + "\r\nSec-Fetch-Site: same-origin\r\nContent-Length: 99\r\n\r\nt=" + secret)
		if !strings.HasPrefix(got, "HTTP/1.1 "+status) {
			t.Errorf("%s: %s", request, got)
		}
	}
}

// TestUnreadableQueue verifies that the page of a detached run needs no queue.
func TestUnreadableQueue(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	j := r.journal.For(r.owner, `{"workflow":"/wf.yaml","detached":true}`)
	checktest.Must(t, j.Append(t.Context(), workflow.Entry{RunID: "run_1", Seq: 1, Kind: workflow.EventRunStarted}))
	want(t, r.page("/runs/run_1"), "interrupted")
}

// TestSlowEngine verifies that a default engine without answers takes no time from the other engines of the list.
func TestSlowEngine(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	place, err := r.app.State()
	checktest.Must(t, err)
	slow, err := net.Listen("unix", filepath.Join(filepath.Dir(string(place.Dir)), "docker.sock"))
	checktest.Must(t, err)
	defer slow.Close()
	records, err := place.OpenRecords(t.Context())
	checktest.Must(t, err)
	checktest.Must(t, errors.Join(records.Insert(t.Context(), record.Record{
		ID: "sbx_a", Key: session.UserKey("a"), Engine: "containerd-1", Owner: "o", State: record.Ready,
	}), records.Close()))
	want(t, r.page("/sandboxes"), "default backend: context deadline", "containerd: connect: ", "sbx_a")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := r.server.OpenSecond(gone); !errors.Is(err, context.Canceled) { // a closed tab
		t.Errorf("a request without a client: %v", err)
	}
}

// TestEvents verifies that the stream of a run rings at first and for each new entry, and the page of a finished run
// names only the stream of the inbox.
func TestEvents(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	step := workflow.Entry{Path: "a", Step: "a", Type: workflow.TypeExec, Visit: 1, Attempt: 1,
		Kind: workflow.EventStepStarted}
	r.add("run_live", workflow.Entry{Kind: workflow.EventRunStarted, Workflow: "wf"})
	if body := r.page("/runs/run_live"); !strings.Contains(body, `data-events="/events?run=run_live"`) {
		t.Fatal("the page has no stream")
	}
	res := r.get(r.client, "/events?run=run_live")
	ring(t, res)
	r.add("run_live", step)
	ring(t, res)
	r.add("run_live", workflow.Entry{Kind: workflow.EventRunFinished, Outcome: workflow.Succeeded})
	ring(t, res)
	if body := r.page("/runs/run_live"); !strings.Contains(body, `data-events="/events?inbox=1"`) {
		t.Error("the page of a finished run has a stream of the run")
	}
	if !strings.HasPrefix(res.Header.Get("Content-Type"), "text/event-stream") ||
		res.Header.Get("X-Accel-Buffering") != "no" {
		t.Errorf("headers %v", res.Header)
	}
}

// ring reads a stream until the next change.
func ring(t *testing.T, res *http.Response) {
	t.Helper()
	buffer := make([]byte, 4096)
	for {
		n, err := res.Body.Read(buffer)
		if bytes.Contains(buffer[:n], []byte("event: change\n")) {
			return
		}
		checktest.Must(t, err)
	}
}

// TestStreamsEnd verifies that streams are limited, and end with the server.
func TestStreamsEnd(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var open []*http.Response
	for range 64 {
		open = append(open, r.get(r.client, "/events"))
	}
	if res := r.get(r.client, "/events"); res.StatusCode != http.StatusTooManyRequests {
		t.Errorf("one more stream: %s", res.Status)
	}
	checktest.Must(t, r.server.Close(t.Context()))
	for _, res := range open {
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Errorf("a stream ends with %v", err)
		}
	}
}

// TestEngineDown verifies that the list of sandboxes reports an unreachable engine, and is not an empty list.
func TestEngineDown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	page := r.page("/sandboxes")
	want(t, page, "default backend:")
	if strings.Contains(page, "No sandboxes") {
		t.Error("an engine that does not answer has no sandboxes")
	}
	if res := r.get(r.client, "/sandboxes/sbx_none"); res.StatusCode != http.StatusNotFound {
		t.Errorf("unknown sandbox: %s", res.Status)
	}
}

// TestTemplates verifies that each template is a page of the layout, and JSON for scripts is not in pages.
func TestTemplates(t *testing.T) {
	t.Parallel()
	names, err := fs.Glob(os.DirFS("web"), "*.html")
	if err != nil || !slices.Contains(names, "layout.html") {
		t.Fatal(err, names)
	}
	for _, name := range names {
		raw, err := os.ReadFile(filepath.Join("web", name))
		checktest.Must(t, err)
		if name != "layout.html" && (!bytes.Contains(raw, []byte(`{{define "main"}}`)) ||
			bytes.Contains(raw, []byte("<script"))) {
			t.Errorf("%s is not a page without scripts", name)
		}
	}
}

// TestAssets verifies that scripts and styles stay small.
func TestAssets(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.server.AssetBytes()
	t.Logf("%d bytes", n)
	if n > 30<<10 {
		t.Error("the assets are too large")
	}
}
