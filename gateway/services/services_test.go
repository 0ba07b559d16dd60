package services_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/workcell-dev/workcell/gateway/services"
	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/buffertest"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/httpconn"
	"github.com/workcell-dev/workcell/sandbox"
)

// canary is the operator's credential, which must not turn up inside.
const canary = "c4n4ry/T0ken+0123456789"

// credentials are the operator's headers. cookie and part are credentials within them.
const cookie, part = "C00kie-0123456789", "p4rt-0123456789"

var credentials = map[string]string{
	"Authorization": "Bearer " + canary + " ", "Cookie": "lang=en; sessionid=" + cookie,
	"X-Token": `token="` + part + `"`,
}

// rig is a sandbox's connection to two services, "api" and "other", of which it uses one.
type rig struct {
	t       testing.TB
	g       *services.Gateway
	addr    string
	server  *url.URL
	spans   *tracetest.InMemoryExporter
	log     *buffertest.Buffer
	audit   string
	refused []sandbox.EgressRefusal

	mu   sync.Mutex // guards got
	got  []string   // requests that the server got
	last *http.Request
	body string
}

var must = checktest.Must

// newRig has answer answer the requests to the service; nil answers with the request.
func newRig(t testing.TB, limits services.Limits, use sandbox.ServiceUse, answer http.HandlerFunc) *rig {
	t.Helper()
	r := &rig{t: t, spans: tracetest.NewInMemoryExporter(), log: &buffertest.Buffer{}, audit: filepath.Join(t.TempDir(), "audit")}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
		body, _ := io.ReadAll(in.Body)
		r.mu.Lock()
		r.got, r.last, r.body = append(r.got, in.Method+" "+in.RequestURI), in, string(body)
		r.mu.Unlock()
		if answer != nil {
			answer(w, in)
		}
	}))
	t.Cleanup(server.Close)
	base, err := url.Parse(server.URL + "/base/v1/")
	must(t, err)
	r.server = base
	transport := &http.Transport{DisableCompression: true}
	t.Cleanup(transport.CloseIdleConnections)
	auth := func(h http.Header) error {
		for name, value := range credentials {
			h.Set(name, value)
		}
		return nil
	}
	r.g, err = services.New([]services.Service{
		{
			Name: "api", URL: base, Auth: auth, Secrets: []string{part}, Headers: http.Header{"X-Api-Version": {"7"}},
			Allow: []string{"GET /repos/**", "POST /repos/acme/*/issues", "* /any"},
		},
		{Name: "other", URL: base, Allow: []string{"* /**"}},
	}, &services.Options{
		Limits: limits, Transport: transport, Log: slog.New(slog.NewTextHandler(r.log, nil)),
		TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(r.spans)),
	})
	must(t, err)
	use.Name = "api"
	set, err := r.g.Open("sbx_1", []sandbox.ServiceUse{use}, func(f sandbox.EgressRefusal) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.refused = append(r.refused, f)
	})
	must(t, err)
	log, err := audit.Open(r.audit, audit.Options{})
	must(t, err)
	t.Cleanup(func() { must(t, log.Close()) })
	inside := httptest.NewUnstartedServer(nil)
	l := inside.Listener
	r.addr = l.Addr().String()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				httpconn.Serve(audit.NewContext(t.Context(), log), c, http.HandlerFunc(func(w http.ResponseWriter, in *http.Request) {
					if !set.Claims(in, "") {
						w.WriteHeader(http.StatusTeapot)
						return
					}
					set.ServeHTTP(w, in)
				}), time.Minute)
			})
		}
	})
	t.Cleanup(func() { must(t, l.Close()); wg.Wait() })
	return r
}

// talk sends a text and returns all that comes back.
func (r *rig) talk(text string) string {
	r.t.Helper()
	c, err := net.Dial("tcp", r.addr)
	must(r.t, err)
	defer c.Close()
	_, err = io.WriteString(c, text)
	must(r.t, err)
	must(r.t, c.SetReadDeadline(time.Now().Add(10*time.Second)))
	got, _ := io.ReadAll(c) // the server may break off
	return string(got)
}

// ask sends a request and returns its answer.
func (r *rig) ask(method, path, body string, header http.Header) (*http.Response, string) {
	r.t.Helper()
	req, err := http.NewRequest(method, "http://"+r.addr+"/api"+path, strings.NewReader(body))
	must(r.t, err)
	req.Header, req.Close = header, true
	if header == nil {
		req.Header = http.Header{}
	}
	res, err := http.DefaultTransport.RoundTrip(req)
	must(r.t, err)
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body) // the answer may break off
	return res, string(text)
}

// TestAttacks: whatever code inside sends, the server gets requests that the rules allow, below its own path, and no
// others.
func TestAttacks(t *testing.T) {
	t.Parallel()
	get := func(target string) string {
		return "GET " + target + " HTTP/1.1\r\nHost: api.workcell\r\nConnection: close\r\n\r\n"
	}
	host := func(name string) string {
		return "GET /repos/a HTTP/1.1\r\nHost: " + name + "\r\nConnection: close\r\n\r\n"
	}
	post := func(header, body string) string {
		return "POST /repos/acme/x/issues HTTP/1.1\r\nHost: api.workcell\r\n" + header + "\r\n\r\n" + body
	}
	const repo, issue = "GET /base/v1/repos/a", "POST /base/v1/repos/acme/x/issues"
	for _, tt := range []struct{ name, send, status, got string }{
		{"to the proxy", get("http://api.workcell/repos/a?x=1&y=%2F%2e%2e"), "200", repo + "?x=1&y=%2F%2e%2e"},
		{"by the host", host("API.workcell.:80"), "200", repo},
		{"by the loopback", strings.Replace(get("/api/repos/a"), "api.workcell", "127.0.0.1:99", 1), "200", repo},
		{"the root of the base", get("/any"), "200", "GET /base/v1/any"},
		{"an encoded letter", get("/repos/%61"), "200", repo},
		{"an encoded question mark", get("/repos/%3f%3F"), "200", "GET /base/v1/repos/%3F%3F"},
		{"a slash at the end", get("/repos/a/"), "200", repo + "/"},
		{"HEAD", strings.Replace(host("api.workcell"), "GET", "HEAD", 1), "200", "HEAD /base/v1/repos/a"},
		{"lines without CR", strings.ReplaceAll(host("api.workcell"), "\r", ""), "200", repo},

		{"another path", get("/admin"), "403", ""},
		{"the base", get("/"), "403", ""},
		{"another method", strings.Replace(host("api.workcell"), "GET", "DELETE", 1), "403", ""},
		{"a lower case method", strings.Replace(host("api.workcell"), "GET", "get", 1), "403", ""},
		{"TRACE", strings.Replace(host("api.workcell"), "GET", "TRACE", 1), "403", ""},
		{"TRACE where all methods are allowed", strings.Replace(get("/any"), "GET", "TRACE", 1), "403", ""},
		{"a deeper path", strings.Replace(post("Connection: close", ""), "/x/", "/x/y/", 1), "403", ""},
		{"an empty segment for *", strings.Replace(post("Connection: close", ""), "/x/", "//", 1), "400", ""},
		{"dots", get("/repos/../admin"), "400", ""},
		{"dots at the end", get("/repos/.."), "400", ""},
		{"a dot", get("/repos/./a"), "400", ""},
		{"encoded dots", get("/repos/%2e%2E/admin"), "400", ""},
		{"half encoded dots", get("/repos/.%2e/admin"), "400", ""},
		{"encoded twice", get("/repos/%252e%252e/admin"), "400", ""},
		{"an encoded slash", get("/repos/..%2fadmin"), "400", ""},
		{"a backslash", get(`/repos/..\admin`), "400", ""},
		{"an encoded backslash", get("/repos/..%5Cadmin"), "400", ""},
		{"two slashes", get("/repos//admin"), "400", ""},
		{"two slashes first", get("//evil.example/repos/a"), "400", ""},
		{"a parameter", get("/repos/..;/admin"), "400", ""},
		{"an encoded parameter", get("/repos/a%3bx=y"), "400", ""},
		{"NUL", get("/repos/a%00"), "400", ""},
		{"a raw NUL", get("/repos/a\x00"), "400", ""},
		{"a line feed", get("/repos/a%0d%0aX:y"), "400", ""},
		{"overlong UTF-8 encoded", get("/repos/%c0%ae%c0%ae%c0%afadmin"), "400", ""},
		{"overlong UTF-8", get("/repos/\xc0\xae\xc0\xae/admin"), "400", ""},
		{"half an encoding", get("/repos/%2"), "400", ""},
		{"no encoding", get("/repos/%u002e"), "400", ""},
		{"a fragment", get("/repos/a#/../../admin"), "400", ""},
		{"a space", get("/repos/a /admin"), "400", ""},

		{"another host", get("http://evil.example/repos/a"), "418", ""},
		{"another Host", host("evil.example"), "418", ""},
		{"a longer host", get("http://api.workcell.evil.example/repos/a"), "418", ""},
		{"a user before the host", get("http://api.workcell@evil.example/repos/a"), "418", ""},
		{"a host before the service", get("http://evil.example@api.workcell/repos/a"), "400", ""},
		{"another Host than the service", strings.Replace(get("http://api.workcell/repos/a"), "Host: api.workcell", "Host: evil.example", 1), "200", repo},
		{"two Hosts", strings.Replace(host("api.workcell"), "\r\n\r\n", "\r\nHost: evil.example\r\n\r\n", 1), "400", ""},
		{"https", get("https://api.workcell/repos/a"), "400", ""},
		{"another scheme", get("file://api.workcell/repos/a"), "400", ""},
		{"no host", get("http:///repos/a"), "400", ""},
		{"another port", get("http://api.workcell:8080/repos/a"), "400", ""},
		{"another service", get("http://other.workcell/repos/a"), "403", ""},
		{"another service by the loopback", strings.Replace(get("/other/repos/a"), "api.workcell", "127.0.0.1:99", 1), "403", ""},
		{"another service below this one", strings.Replace(get("/api/../other/any"), "api.workcell", "127.0.0.1:99", 1), "400", ""},
		{"no service", get("http://workcell/repos/a"), "418", ""},
		{"a star", strings.Replace(get("*"), "GET", "OPTIONS", 1), "400", ""},

		{"two lengths", post("Content-Length: 4\r\nContent-Length: 44", "x=y\nGET /admin HTTP/1.1\r\nHost: api.workcell\r\n\r\n"), "400", ""},
		{"a length and chunks", post("Content-Length: 4\r\nTransfer-Encoding: chunked", "0\r\n\r\n"+get("/admin")), "200 403", issue},
		{"chunks and a length", post("Transfer-Encoding: chunked\r\nContent-Length: 40", "0\r\n\r\n"+get("/admin")), "200 403", issue},
		{"an unknown encoding", post("Content-Length: 4\r\nTransfer-Encoding: xchunked", "0\r\n\r\n"+get("/admin")), "501", ""},
		{"two encodings", post("Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", "0\r\n\r\n"+get("/admin")), "501", ""},
		{"a space before the colon", post("Transfer-Encoding : chunked\r\nContent-Length: 4", "0\r\n\r\n"+get("/admin")), "400", ""},
		{"a folded header", post("X: y\r\n Transfer-Encoding: chunked", get("/admin")), "200 403", issue},
		{"the next request", get("/repos/a")[:len(get("/repos/a"))-21] + "\r\n" + get("/admin"), "200 403", repo},
		{"a body of GET", get("/repos/a")[:len(get("/repos/a"))-2] + fmt.Sprintf("Content-Length: %d\r\n\r\n", len(get("/admin"))) + get("/admin"), "200", repo},
		{"trailers", post("Connection: close\r\nTransfer-Encoding: chunked\r\nTrailer: X-Original-Url", "0\r\nX-Original-Url: /admin\r\n\r\n"), "200", issue},
		{"an upgrade", strings.Replace(host("api.workcell"), "close", "close, Upgrade\r\nUpgrade: websocket\r\nSec-Websocket-Key: eA==", 1), "200", repo},
		{"h2c", strings.Replace(host("api.workcell"), "close", "close, Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk", 1), "200", repo},
		{"HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "418", ""},
		{"CONNECT", "CONNECT api.workcell:443 HTTP/1.1\r\nHost: api.workcell:443\r\nConnection: close\r\n\r\n", "418", ""},
		{"TLS", "\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00\r\n\r\n", "400", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, services.Limits{}, sandbox.ServiceUse{}, nil)
			answer := r.talk(tt.send)
			r.mu.Lock()
			defer r.mu.Unlock()
			var status []string
			for line := range strings.Lines(answer) {
				if strings.HasPrefix(line, "HTTP/1.") {
					status = append(status, strings.Fields(line)[1])
				}
			}
			if got := strings.Join(status, " "); got != tt.status {
				t.Errorf("status %s, want %s: %s", got, tt.status, answer)
			}
			if got := strings.Join(r.got, " "); got != tt.got {
				t.Errorf("the server got %q, want %q", got, tt.got)
			}
			if r.last != nil && (r.last.Host != r.server.Host || r.last.Header.Get("Authorization") != "Bearer "+canary ||
				len(r.last.Trailer) > 0 || r.last.Header.Get("Upgrade") != "") {
				t.Errorf("the server got the host %s, %v", r.last.Host, r.last.Header)
			}
			if strings.Contains(answer, canary) {
				t.Error("the answer has the secret")
			}
		})
	}
}

// TestRequestHeaders: the server gets the operator's headers, and of the sandbox's own only the description of the
// request.
func TestRequestHeaders(t *testing.T) {
	t.Parallel()
	r := newRig(t, services.Limits{}, sandbox.ServiceUse{}, nil)
	sent := http.Header{
		"Accept": {"application/json"}, "Content-Type": {"text/plain"}, "Content-Range": {"bytes 0-4/9"}, "X-Github-Api-Version": {"2022-11-28"}, "If-None-Match": {`"e"`}, "User-Agent": {"me"},
	}
	want := sent.Clone()
	for name, value := range map[string]string{
		"Authorization": "Bearer mine", "Cookie": "a=b", "Proxy-Authorization": "x", "Proxy-Connection": "x", "X-Forwarded-For": "1.2.3.4", "X-Forwarded-Host": "evil.example",
		"Forwarded": "for=x", "X-Real-Ip": "1.2.3.4", "X-Api-Version": "666", "Private-Token": "mine", "X-Api-Key": "mine", "Impersonate-User": "root", "Sudo": "root",
		"X-Http-Method-Override": "DELETE", "X-Original-Url": "/admin", "X-Rewrite-Url": "/admin", "Destination": "http://evil.example/", "Range": "bytes=0-3",
		"Te": "trailers", "Keep-Alive": "x", "X-Amz-Target": "Delete", "Via": "x", "Accept-Encoding": "gzip", "Traceparent": "x", "Connection": "X-Github-Api-Version",
	} {
		sent.Set(name, value)
	}
	if res, _ := r.ask("POST", "/repos/acme/x/issues", "hello", sent); res.StatusCode != 200 || r.body != "hello" {
		t.Fatalf("%d, %q", res.StatusCode, r.body)
	}
	for name, value := range credentials {
		want.Set(name, strings.TrimSpace(value))
	}
	want.Set("X-Api-Version", "7")
	want.Set("Accept-Encoding", "identity")
	want.Set("Content-Length", "5")
	if got, want := fmt.Sprint(r.last.Header), fmt.Sprint(want); got != want {
		t.Errorf("the server got\n%s, want\n%s", got, want)
	}
}

// TestAnswers: an answer passes without the operator's secret, cookies, and early hints, and leads nowhere else.
func TestAnswers(t *testing.T) {
	t.Parallel()
	header := func(name, value string) http.HandlerFunc {
		return func(w http.ResponseWriter, in *http.Request) {
			w.Header().Set(name, strings.NewReplacer("SERVER", "http://"+in.Host, "HOST", in.Host).Replace(value))
			w.WriteHeader(http.StatusFound)
		}
	}
	redirect := func(to string) http.HandlerFunc { return header("Location", to) }
	quote := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<"+text+">") }
	}
	encoded := func(text string) http.HandlerFunc { return quote(base64.StdEncoding.EncodeToString([]byte(text))) }
	for _, tt := range []struct {
		name   string
		answer http.HandlerFunc
		status int
		want   string // in the header and the body
	}{
		{"a redirect", redirect("SERVER/base/v1/repos/b?x=1#y"), 302, "Location: http://ADDR/api/repos/b?x=1\r\n"},
		{"a relative redirect", redirect("../repos/b"), 302, "Location: http://ADDR/api/repos/b\r\n"},
		{"to a path outside", redirect("/base/v1x/repos/b"), 502, "services: redirect"},
		{"to a path above", redirect("../../../admin"), 502, "services: redirect"},
		{"with encoded dots", redirect("SERVER/base/v1/%2e%2e/admin"), 502, "services: redirect"},
		{"to another host", redirect("https://evil.example/base/v1/x?token=" + canary), 502, "redirects to evil.example, which"},
		{"to a host without a scheme", redirect("//evil.example/base/v1/"), 502, "services: redirect"},
		{"a new resource elsewhere", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "https://evil.example/")
			w.WriteHeader(http.StatusCreated)
		}, 201, "!Location"},
		{"to a user", redirect("http://u:p@HOST/base/v1/"), 502, ""},
		{"to no address", redirect("http://%zz/"), 502, "invalid redirect"},
		{"a link", header("Link", `<SERVER/base/v1/repos?page=2>; rel="next"`), 302, `Link: <http://ADDR/api/repos?page=2>; rel="next"`},
		{"a cookie", header("Set-Cookie", "a=b"), 302, "!Set-Cookie"},
		{"the secret in a header", header("X-Echo", "Bearer "+canary), 302, "X-Echo: [key]\r\n"},
		{"the credential's name", header("Authorization", "x"), 302, "!Authorization"},
		{"the secret", quote(canary), 200, "<[key]>"},
		{"parts of headers", quote(cookie + "/" + part), 200, "<[key]/[key]>"},
		{"the name of a cookie", quote("sessionid"), 200, "<sessionid>"},
		{"in URL encoding", quote(url.QueryEscape(canary)), 200, "<[key]>"},
		{"in lower case", quote(strings.Replace(canary, "+", "%2b", 1)), 200, "<[key]>"},
		{"in base64", encoded(canary), 200, "<[key]"},
		{"in base64 after a byte", encoded("~" + canary + "~~"), 200, "<fm[key]fn4=>"},
		{"in base64 after two bytes", encoded("~~" + canary + "~"), 200, "<fn5[key]X4=>"},
		{"in JSON", quote(strings.ReplaceAll(canary, "/", `\/`)), 200, "<[key]>"},
		{"in JSON with codes", quote(strings.ReplaceAll(canary, "+", `\u002B`)), 200, "<[key]>"},
		{"in HTML", quote(strings.ReplaceAll(canary, "+", "&#43;")), 200, "<[key]>"},
		{"in the name of a header", header("X-"+cookie, "x"), 302, "!X-C"},
		{"in the name of a host", redirect("https://" + cookie + ".evil.example/"), 502, "to [key].evil.example, which"},
		{"in a query", redirect("/base/v1/repos/b?x=" + strings.Replace(canary, "+", "%2b", 1)), 302, "?x=[key]\r\n"},
		{"compressed at last", func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Encoding"] = []string{"", "gzip"}
		}, 502, "compressed"},
		{"compressed", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Encoding", "gzip") }, 502, "compressed"},
		{"an early hint", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Early", canary)
			w.WriteHeader(http.StatusEarlyHints)
			w.Header().Del("X-Early")
		}, 200, "!X-Early"},
		{"a trailer", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, "x")
			w.Header().Set(http.TrailerPrefix+"X-Late", canary)
		}, 200, "!X-Late"},
		{"an upgrade", func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nHTTP/1.1 200 OK\r\n\r\n")
				_ = c.Close()
			}
		}, 502, "invalid response"},
		{"no HTTP", func(w http.ResponseWriter, _ *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_, _ = io.WriteString(c, canary+"\r\n\r\n")
				_ = c.Close()
			}
		}, 502, "invalid response"},
		{"an error of the server", func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "bad key "+canary, http.StatusUnauthorized)
		}, 401, "bad key [key]"},
		{"too large by its length", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Content-Length", "101") }, 502, "larger than 100 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, services.Limits{AnswerBytes: 100}, sandbox.ServiceUse{}, tt.answer)
			res, body := r.ask("GET", "/repos/a", "", nil)
			r.mu.Lock()
			defer r.mu.Unlock()
			var all bytes.Buffer
			must(t, res.Header.Write(&all))
			must(t, res.Trailer.Write(&all))
			text := all.String() + body + fmt.Sprint(r.refused)
			want, absent := strings.CutPrefix(strings.ReplaceAll(tt.want, "ADDR", r.addr), "!")
			if res.StatusCode != tt.status || strings.Contains(text, want) == absent {
				t.Errorf("%d %q, want %d %q", res.StatusCode, text, tt.status, tt.want)
			}
			if strings.Contains(text+r.log.String(), canary) {
				t.Errorf("the secret is in %q, or in the log %q", text, r.log)
			}
			if len(r.got) != 1 {
				t.Errorf("the host followed: %q", r.got)
			}
		})
	}
}

// TestLimits: size, rate, time, and number of requests have bounds, and a refusal names its own.
func TestLimits(t *testing.T) {
	t.Parallel()
	hang := func(_ http.ResponseWriter, in *http.Request) { <-in.Context().Done() }
	chunked := "POST /repos/acme/x/issues HTTP/1.1\r\nHost: api.workcell\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, tt := range []struct {
		name   string
		limits services.Limits
		answer http.HandlerFunc
		send   func(r *rig) string
		want   string
	}{
		{"a large body", services.Limits{RequestBytes: 4}, nil, func(r *rig) string {
			_, body := r.ask("POST", "/repos/acme/x/issues", "12345", nil)
			return body
		}, "larger than 4 bytes"},
		{"a large body in chunks", services.Limits{RequestBytes: 4}, nil, func(r *rig) string {
			return r.talk(chunked + "5\r\n12345\r\n0\r\n\r\n")
		}, " 413 "},
		{"a body that does not come", services.Limits{Time: 100 * time.Millisecond}, nil, func(r *rig) string {
			c, err := net.Dial("tcp", r.addr)
			must(r.t, err)
			defer c.Close()
			_, err = io.WriteString(c, chunked)
			must(r.t, err)
			_, err = bufio.NewReader(c).ReadString('\n')
			return fmt.Sprint("ended: ", err != nil)
		}, "ended: "},
		{"no answer", services.Limits{Time: 100 * time.Millisecond}, hang, func(r *rig) string {
			return r.talk("GET /repos/a HTTP/1.1\r\nHost: api.workcell\r\nConnection: close\r\n\r\n") + "ended"
		}, "ended"},
		{"a large answer", services.Limits{AnswerBytes: 100}, func(w http.ResponseWriter, _ *http.Request) {
			for range 10 {
				_, _ = io.WriteString(w, strings.Repeat("~", 50))
				w.(http.Flusher).Flush()
			}
		}, func(r *rig) string {
			got := r.talk("GET /repos/a HTTP/1.1\r\nHost: api.workcell\r\nConnection: close\r\n\r\n")
			return fmt.Sprint(strings.Count(got, "~") <= 100)
		}, "true"},
		{"an end within a secret", services.Limits{AnswerBytes: 100}, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, strings.Repeat("~\n", 40)+canary)
			w.(http.Flusher).Flush()
		}, func(r *rig) string {
			got := r.talk("GET /repos/a HTTP/1.1\r\nHost: api.workcell\r\nConnection: close\r\n\r\n")
			return fmt.Sprint(strings.Count(got, "~"), strings.Contains(got, canary[:4]))
		}, "40 false"},
		{"the header of a large answer", services.Limits{AnswerBytes: 100}, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "101")
		}, func(r *rig) string {
			return r.talk("HEAD /any HTTP/1.1\r\nHost: api.workcell\r\nConnection: close\r\n\r\n")
		}, "200 OK"},
		{"many requests", services.Limits{PerSecond: 1}, nil, func(r *rig) string {
			var all strings.Builder
			for range 12 {
				res, body := r.ask("GET", "/repos/a", "", nil)
				all.WriteString(body + res.Header.Get("Retry-After"))
			}
			return all.String()
		}, "too many requests to api"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, tt.limits, sandbox.ServiceUse{}, tt.answer)
			if got := tt.send(r); !strings.Contains(got, tt.want) {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

// TestRecords: each request is a span and a line of the audit log, and the caller of the command gets the refusals.
func TestRecords(t *testing.T) {
	t.Parallel()
	r := newRig(t, services.Limits{}, sandbox.ServiceUse{Allow: []string{"GET /repos/acme/**"}}, func(w http.ResponseWriter, in *http.Request) {
		_, _ = fmt.Fprint(w, in.Header)
	})
	for _, path := range []string{"/repos/acme/x?q=hidden", "/repos/other/x", "/users"} {
		if _, body := r.ask("GET", path, "", nil); strings.Contains(body, canary) {
			t.Error("the answer has the secret")
		}
	}
	text, err := os.ReadFile(r.audit)
	must(t, err)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	wants := []string{
		`"request":"GET /repos/acme/x","decision":"allowed","rule":"GET /repos/**"`,
		`"request":"GET /repos/other/x","decision":"refused","rule":"sandbox.services.api.allow"`,
		`"request":"GET /users","decision":"refused","rule":"services.api.allow"`,
	}
	for i, want := range wants {
		if len(lines) != len(wants) || !strings.Contains(lines[i], want) || !strings.Contains(lines[i], `"event":"service"`) {
			t.Errorf("audit: %s, want %s", text, want)
		}
	}
	var spans strings.Builder
	for _, s := range r.spans.GetSpans() {
		fmt.Fprintln(&spans, s.Name, s.Attributes, s.Status)
	}
	for _, want := range []string{"services.Request", "api.workcell", "GET", "{INT64 200", "{INT64 403"} {
		if !strings.Contains(strings.ReplaceAll(spans.String(), "} {", "}\n{"), strings.TrimPrefix(want, "{INT64 ")) {
			t.Errorf("spans without %s: %s", want, &spans)
		}
	}
	if len(r.spans.GetSpans()) != 3 || strings.Contains(spans.String()+string(text)+r.log.String(), canary) || strings.Contains(spans.String()+string(text), "hidden") {
		t.Errorf("%s%s%s", &spans, text, r.log)
	}
	if len(r.refused) != 2 || r.refused[0].Host != "api.workcell:80" || !strings.Contains(r.refused[0].Hint, "GET /repos/acme/**") {
		t.Errorf("refused %+v", r.refused)
	}
}

// TestManyRefusals verifies that the records of refusals are limited, and that later allowed requests are recorded.
func TestManyRefusals(t *testing.T) {
	t.Parallel()
	r := newRig(t, services.Limits{}, sandbox.ServiceUse{}, nil)
	c, err := net.Dial("tcp", r.addr)
	must(t, err)
	defer c.Close()
	const request = "GET /api/users HTTP/1.1\r\nHost: localhost\r\n\r\n"
	go func() {
		_, _ = io.WriteString(c, strings.Repeat(request, audit.MaxRefused+50)+"GET /bad HTTP/1.0\r\n\r\n")
	}()
	_, err = io.Copy(io.Discard, c)
	must(t, err)
	r.ask("GET", "/repos/a", "", nil)
	text, err := os.ReadFile(r.audit)
	must(t, err)
	lines, spans := strings.Count(string(text), "\n"), len(r.spans.GetSpans())
	warnings := strings.Count(r.log.String(), "further refusals")
	if lines != audit.MaxRefused+1 || spans != lines || !strings.Contains(string(text), "allowed") || warnings != 1 {
		t.Errorf("%d lines, %d spans, %d warnings", lines, spans, warnings)
	}
}

// TestDefinitions: a service, or the use of one, that cannot work is refused with a remedy.
func TestDefinitions(t *testing.T) {
	t.Parallel()
	u := func(text string) *url.URL { v, _ := url.Parse(text); return v }
	other := services.Service{Name: "other", URL: u("http://x"), Allow: []string{"GET /"}}
	for want, s := range map[string]services.Service{
		"is not the name":     {Name: "Api", URL: u("http://x"), Allow: []string{"GET /"}},
		"allows no request":   {Name: "api", URL: u("http://x")},
		"is not an http":      {Name: "api", URL: u("ftp://x"), Allow: []string{"GET /"}},
		"contains a password": {Name: "api", URL: u("http://u:p@x"), Allow: []string{"GET /"}},
		"a query":             {Name: "api", URL: u("http://x?y"), Allow: []string{"GET /"}},
		"ambiguous path":      {Name: "api", URL: u("http://x/a/../b"), Allow: []string{"GET /"}},
		"not a request rule":  {Name: "api", URL: u("http://x"), Allow: []string{"/x"}},
		"invalid argument: duplicate service other": other,
		"set by the host": {Name: "api", URL: u("http://x"), Allow: []string{"GET /"}, Headers: http.Header{"Host": {"y"}}},
	} {
		if _, err := services.New([]services.Service{other, s}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	r := newRig(t, services.Limits{}, sandbox.ServiceUse{}, nil)
	for want, use := range map[string]sandbox.ServiceUse{
		`unknown service "apis"; did you mean "api"?`: {Name: "apis"},
		`"x" is not a request rule`:                   {Name: "api", Allow: []string{"x"}},
	} {
		if _, err := r.g.Open("sbx_2", []sandbox.ServiceUse{use}, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// BenchmarkRequest compares 1,000 requests through the gateway with 1,000 requests to its server. extra-ms is the
// difference for each request.
func BenchmarkRequest(b *testing.B) {
	r := newRig(b, services.Limits{PerSecond: 1_000_000}, sandbox.ServiceUse{}, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("0123456789", 200))
	})
	client := &http.Client{Transport: &http.Transport{}}
	defer client.CloseIdleConnections()
	thousand := func(url string) time.Duration {
		began := time.Now()
		for range 1000 {
			res, err := client.Get(url)
			must(b, err)
			_, err = io.Copy(io.Discard, res.Body)
			must(b, err)
			must(b, res.Body.Close())
		}
		return time.Since(began) / 1000
	}
	var direct, through time.Duration
	for b.Loop() {
		direct += thousand(r.server.String() + "repos/a")
		through += thousand("http://" + r.addr + "/api/repos/a")
	}
	b.ReportMetric((through-direct).Seconds()*1000/float64(b.N), "extra-ms")
	b.ReportMetric(direct.Seconds()*1000/float64(b.N), "direct-ms")
}
