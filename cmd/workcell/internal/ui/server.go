// Package ui serves the pages of `workcell ui`, which show runs and sandboxes in a browser. Pages are rendered on the
// server and can be read without scripts. A script only replaces changed parts.
//
// The contents of journals, traces, sandboxes, models, and tools are untrusted text. Templates escape it, and render
// escapes control characters in the whole page.
package ui

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"html/template"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/app"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/state"
	"github.com/workcell-dev/workcell/internal/audit"
	"github.com/workcell-dev/workcell/internal/httpguard"
	"github.com/workcell-dev/workcell/internal/sanitize"
	"github.com/workcell-dev/workcell/workflow/runstore"
)

//go:embed web
var web embed.FS

// Bounds of the server.
const (
	MaxConns = 256 // open connections

	maxStreams  = 64
	maxRequests = 64 // running requests of one client
	requestRate = 100
	maxBody     = 1 << 20

	bodyTimeout, writeTimeout = 30 * time.Second, 30 * time.Second
)

const openStreams = httpguard.Requests + 1

// Options configures New. App, Journal, and URL are required.
type Options struct {
	App      *app.App
	Journal  runstore.Store
	URL      string           // scheme, host, and port of login links
	Hosts    []string         // further names of the server
	Tokens   httpguard.Tokens // instead of login links
	ReadOnly bool             // leave out all actions
	Allow    []string         // permitted Actions; nil means all
	Proxies  []netip.Prefix   // addresses of reverse proxies, which terminate TLS; others are rejected if it is set
	UserName string           // header with the user's name, set by the proxies instead of a login
	User     string           // who answers questions with a login link
	State    string           // name of the state, for the footer
	Version  string
	Secret   []byte // signs cookies; a server with the same secret accepts them

	away, body time.Duration // instead of awayTime and bodyTimeout
}

// Server serves the pages. It is safe for concurrent use.
type Server struct {
	opts    Options
	mux     *http.ServeMux
	routes  map[string]route // by pattern
	pages   map[string]*template.Template
	assets  map[string][]byte // by path, compressed
	origins *http.CrossOriginProtection
	limiter *httpguard.Limiter
	ctx     context.Context
	end     context.CancelFunc
	key     string // see Key

	records state.Records

	mu    sync.Mutex // guards links and asked
	links map[[sha256.Size]byte]time.Time
	asked []string // ids of the latest questions, oldest first

	attending sync.WaitGroup
	seen      chan struct{} // receives an element when a browser requests a page
	browsers  atomic.Int64  // open streams of browsers

	opening  chan struct{}           // full while an engine is opened; taken before engines
	engines  sync.Mutex              // guards managers
	managers map[string]*app.Manager // by requested backend; an empty name means the default
}

// handler answers a request, or returns an error, which becomes a page.
type handler func(w http.ResponseWriter, r *http.Request) error

// route is a row of the table of routes.
type route struct {
	pattern string
	serve   handler
	kind    routeKind
}

type routeKind int

const (
	reads routeKind = iota
	opens           // needs no login
	live            // a stream for pages of this server only
	acts            // an action is acts and its index in Actions; registered only if it is permitted
)

// Actions are the actions that change files or runs.
var Actions = []string{"apply", "approve", "cancel"}

const (
	applies = acts + iota
	approves
	cancels
)

// may reports whether the server permits an action.
func (o *Options) may(action routeKind) bool {
	return !o.ReadOnly && (o.Allow == nil || slices.Contains(o.Allow, Actions[action-acts]))
}

// New returns a Server. The caller must close it.
func New(ctx context.Context, o Options) (*Server, error) {
	s := &Server{
		opts: o, key: rand.Text(), mux: http.NewServeMux(), routes: map[string]route{},
		origins: http.NewCrossOriginProtection(),
		pages:   map[string]*template.Template{}, assets: map[string][]byte{},
		links: map[[sha256.Size]byte]time.Time{}, managers: map[string]*app.Manager{}, seen: make(chan struct{}, 1),
		opening: make(chan struct{}, 1),
		limiter: httpguard.NewLimiter(requestRate,
			httpguard.Limit{What: "concurrent requests", Each: maxRequests, All: math.MaxInt64},
			httpguard.Limit{What: "streams", Each: maxStreams, All: maxStreams}),
	}
	s.ctx, s.end = context.WithCancel(ctx)
	place, err := o.App.State()
	if err = cmp.Or(err, s.load()); err == nil {
		s.records, err = place.OpenRecords(ctx)
	}
	if err != nil {
		return nil, err
	}
	for _, r := range s.table() {
		if r.kind >= acts && !o.may(r.kind) {
			continue
		}
		s.routes[r.pattern] = r
		s.mux.HandleFunc(r.pattern, func(w http.ResponseWriter, req *http.Request) {
			if err := r.serve(w, req); err != nil {
				s.fail(w, req, err)
			}
		})
	}
	s.attending.Go(s.attend)
	return s, nil
}

// Close ends all streams and closes the engines. The sandboxes stay.
func (s *Server) Close(ctx context.Context) error {
	s.end()
	s.attending.Wait()
	return s.closeManagers(ctx)
}

func (s *Server) table() []route {
	return []route{
		{"GET /{$}", func(w http.ResponseWriter, r *http.Request) error { return redirect(w, r, "/runs") }, reads},
		{"GET /healthz", health, opens},
		{"GET /assets/{hash}/{name}", s.asset, opens},
		{"GET /login", s.login, opens},
		{"POST /login", s.loginForm, opens},
		{"POST /link", s.newLink, opens},
		{"POST /theme", theme, reads},
		{"GET /runs", s.runs, reads},
		{"GET /runs/{run}", s.ofRun("timeline", s.run), reads},
		{"GET /runs/{run}/changes", s.ofRun("changes", s.changes), reads},
		{"GET /runs/{run}/files", s.ofRun("files", s.files), reads},
		{"GET /runs/{run}/journal", s.ofRun("journal", s.journal), reads},
		{"GET /runs/{run}/patch", s.patch, reads},
		{"GET /runs/{run}/raw/{path...}", s.rawOutput, reads},
		{"GET /runs/{run}/steps/{seq}/{field}", s.ofRun("", s.rawStep), reads},
		{"GET /runs/{run}/apply", s.ofRun("changes", s.applyPreview), applies},
		{"POST /runs/{run}/apply", s.ofRun("changes", s.apply), applies},
		{"POST /runs/{run}/cancel", s.cancel, cancels},
		{"GET /runs/{run}/transcript", s.ofRun("", s.transcript), reads},
		{"GET /inbox", s.inbox, reads},
		{"POST /inbox/{id}/{answer}", s.answer, approves},
		{"GET /sandboxes", s.sandboxes, reads},
		{"GET /sandboxes/{id}", s.sandbox, reads},
		{"GET /sandboxes/{id}/files", s.sandboxFiles, reads},
		{"GET /sandboxes/{id}/raw/{path...}", s.rawFile, reads},
		{"GET /sandboxes/{id}/execs/{exec}", s.exec, reads},
		{"GET /sandboxes/{id}/execs/{exec}/events", s.execEvents, live},
		{"GET /events", s.events, live},
	}
}

var contentTypes = map[string]string{
	".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// load reads the templates, and compresses the assets.
func (s *Server) load() error {
	urls := map[string]string{}
	funcs := maps.Clone(formats)
	funcs["may"] = func(action string) bool { return s.opts.may(acts + routeKind(slices.Index(Actions, action))) }
	funcs["asset"] = func(name string) string { return urls[name] }
	files, err := web.ReadDir("web")
	errs := []error{err}
	for _, f := range files {
		raw, err := web.ReadFile("web/" + f.Name())
		errs = append(errs, err)
		if contentTypes[path.Ext(f.Name())] != "" {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			_, err = z.Write(raw)
			errs = append(errs, err, z.Close())
			urls[f.Name()] = "/assets/" + digest(raw) + "/" + f.Name()
			s.assets[urls[f.Name()]] = b.Bytes()
		} else if name, isPage := strings.CutSuffix(f.Name(), ".html"); isPage {
			s.pages[name], err = template.New("layout.html").Funcs(funcs).ParseFS(web, "web/layout.html", "web/"+f.Name())
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}

const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; " +
	"trusted-types workcell"

// ServeHTTP handles one request. It does the cheap checks first, and checks the client's login before anything
// expensive.
func (s *Server) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w := &httpguard.PacedWriter{ResponseWriter: rw, Timeout: writeTimeout}
	defer w.Extend() // the server writes the rest of the answer after this
	maps.Copy(w.Header(), http.Header{
		"Content-Security-Policy": {policy}, "X-Content-Type-Options": {"nosniff"}, "Referrer-Policy": {"no-referrer"},
		"Cross-Origin-Opener-Policy": {"same-origin"}, "Cross-Origin-Resource-Policy": {"same-origin"},
		"Cache-Control": {"no-store"},
	})
	w.Header().Set("Connection", "close") // refused clients must not occupy connections
	proxied, direct := s.proxied(r)
	if host := forwarded(r, "X-Forwarded-Host"); proxied && host != "" {
		r.Host = host // the browser's
	}
	rc := http.NewResponseController(rw)
	if r.ContentLength != 0 { // the server reads each body before it answers
		_ = rc.SetReadDeadline(time.Now().Add(cmp.Or(s.opts.body, bodyTimeout))) // always supported by its connections
	}
	_, pattern := s.mux.Handler(r)
	at := s.routes[pattern]
	address, _, _ := net.SplitHostPort(r.RemoteAddr) // always valid, because net/http set it
	if proxied {
		address += " " + forwarded(r, "X-Forwarded-For")
	}
	client := "address " + address                // until it has logged in
	isPublic := at.kind == opens && pattern != "" // excludes unknown paths, to reveal nothing
	who, known := s.identify(r)
	switch {
	case !r.ProtoAtLeast(1, 1) || r.URL.Host != "":
		http.Error(w, "HTTP/1.1 is required", http.StatusBadRequest)
		return
	case !direct && !proxied:
		http.Error(w, "connect through the proxy", http.StatusForbidden)
		return
	case !httpguard.HostAllowed(r.Host, s.opts.Hosts...):
		http.Error(w, "unknown host name; see --allow-host", http.StatusMisdirectedRequest)
		return
	case !s.originAllowed(r, r.Method == http.MethodPost || at.kind == live):
		http.Error(w, "requests from other pages are not allowed", http.StatusForbidden)
		return
	case known && !isPublic:
		client = who
		s.see(r, 0)
	}
	kind := httpguard.Requests
	if at.kind == live {
		kind = openStreams
	}
	no := s.limiter.Ask(client)
	if no == nil && !known && !isPublic {
		s.askLogin(w, r)
		return
	}
	if no == nil {
		no = s.limiter.Take(client, kind, 1)
	}
	if no != nil {
		no.Write(w)
		return
	}
	w.Header().Del("Connection")
	defer s.limiter.Give(client, kind, 1)
	r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	if r.Method == http.MethodPost {
		err := r.ParseForm() // reads only forms
		if _, rest := io.Copy(io.Discard, r.Body); errors.Join(err, rest) != nil {
			http.Error(w, "the body is incomplete, or not a form", http.StatusBadRequest)
			return
		}
		_ = rc.SetReadDeadline(time.Time{}) // an action may take long
	}
	s.mux.ServeHTTP(w, r)
}

// originAllowed reports whether a request is from a page of this server, or from a program without cookies. Unless the
// check is strict, links of other pages are allowed, and browsers that do not send the origin.
func (s *Server) originAllowed(r *http.Request, strict bool) bool {
	h := r.Header
	if !strict && h.Get("Sec-Fetch-Mode") == "navigate" && h.Get("Sec-Fetch-Dest") == "document" {
		return true
	}
	unknown := h.Get("Sec-Fetch-Site")+h.Get("Origin") == ""
	login := h.Get("Cookie") + h.Get(cmp.Or(s.opts.UserName, "Cookie"))
	return httpguard.OriginAllowed(s.origins, r) && (!strict || login == "" || !unknown)
}

// page is the data of layout.html.
type page struct {
	Title, Nav string
	Theme      string
	Path       string
	Events     string // URL of the stream of changes
	Waiting    string // number of open questions; empty for none
	Body       any

	ReadOnly       bool
	State, Version string
}

// render writes a page. If the client has this page, render answers 304.
func (s *Server) render(w http.ResponseWriter, r *http.Request, status int, name string, p page) error {
	p.Theme, p.Path = themeOf(r), r.URL.RequestURI()
	if _, known := s.identify(r); !known {
		p.Nav = "login" // the rest of the layout is only for users
	} else {
		p.ReadOnly, p.State, p.Version = s.opts.ReadOnly, s.opts.State, s.opts.Version
	}
	if p.Nav != "login" {
		if r.Method == http.MethodGet { // a refresh would replace the result of an action
			p.Events = cmp.Or(p.Events, "/events?inbox=1")
		}
		switch list, err := s.questions(r.Context(), ""); {
		case err != nil:
			p.Waiting = "?"
		case len(list) > 0:
			p.Waiting = strconv.Itoa(len(list))
		}
	}
	var b bytes.Buffer
	if err := s.pages[name].Execute(&b, p); err != nil {
		return err
	}
	// Templates escape HTML. This escapes control characters, invisible characters, and changes of the text
	// direction.
	text := sanitize.Text(b.String())
	tag := `"` + digest([]byte(text)) + `"`
	w.Header().Set("ETag", tag)
	if status == http.StatusOK && r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return nil
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(text)) // a disconnected client needs no page
	return nil
}

// fail answers with a page for an error.
func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	if r.Context().Err() != nil {
		return // the client has gone
	}
	if errors.Is(err, http.ErrAbortHandler) {
		panic(http.ErrAbortHandler)
	}
	code, todo := app.Classify(err)
	status := cmp.Or(map[int]int{
		app.ExitNotFound: http.StatusNotFound, app.ExitConflict: http.StatusConflict, app.ExitUsage: http.StatusBadRequest,
		app.ExitInvalid: http.StatusBadRequest, app.ExitUnavailable: http.StatusServiceUnavailable,
	}[code], http.StatusInternalServerError)
	p := page{Title: http.StatusText(status), Body: []any{status, err, todo}}
	if err := s.render(w, r, status, "error", p); err != nil {
		http.Error(w, "cannot render the page", http.StatusInternalServerError)
	}
}

// note records an action in the audit file, before the action.
func (s *Server) note(r *http.Request, run string) error {
	who, _ := s.identify(r) // ServeHTTP has checked it
	return audit.Note(r.Context(), func(rec *audit.Record) {
		rec.Event, rec.Run, rec.Decision = audit.EventUI, run, audit.Allowed
		rec.Request, rec.By = r.Method+" "+r.URL.Path, who
	})
}

func (s *Server) asset(w http.ResponseWriter, r *http.Request) error {
	a, ok := s.assets[r.URL.Path]
	if !ok {
		return app.Fail(app.ExitNotFound, fmt.Errorf("%s not found", r.URL.Path), "")
	}
	w.Header().Set("Cache-Control", "public, max-age=31536000, immutable")
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Set("Content-Type", contentTypes[path.Ext(r.URL.Path)])
	_, _ = w.Write(a) // as in render
	return nil
}

func health(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/json")
	_, _ = fmt.Fprintln(w, `{"status":"ok"}`) // as in render
	return nil
}

func redirect(w http.ResponseWriter, r *http.Request, to string) error {
	http.Redirect(w, r, to, http.StatusSeeOther)
	return nil
}

const themeCookie = "wc_theme"

// theme changes the colors of the client's pages. It changes nothing on the server.
func theme(w http.ResponseWriter, r *http.Request) error {
	next := map[string]string{"": "light", "light": "dark", "dark": ""}[themeOf(r)]
	http.SetCookie(w, &http.Cookie{
		Name: themeCookie, Value: next, Path: "/", MaxAge: 365 * 24 * 3600, HttpOnly: true, SameSite: http.SameSiteLaxMode,
	})
	back := r.PostFormValue("back")
	u, err := url.Parse(back)
	if err != nil || u.Host+u.Scheme != "" || !strings.HasPrefix(u.Path, "/") || strings.HasPrefix(u.Path, "//") ||
		strings.Contains(back, `\`) { // browsers read it as a slash
		back = "/runs"
	}
	return redirect(w, r, back)
}

// themeOf returns light, dark, or an empty string, which means the browser's setting.
func themeOf(r *http.Request) string {
	c, err := r.Cookie(themeCookie)
	if err != nil || c.Value != "light" && c.Value != "dark" {
		return ""
	}
	return c.Value
}
