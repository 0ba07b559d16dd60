package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// Paths that ServeHTTP answers.
const (
	PathMCP    = "/mcp"
	PathHealth = "/healthz"
)

// Defaults and bounds of HTTPOptions.
const (
	DefaultMaxConns     = 256
	DefaultMaxSessions  = 512
	DefaultMaxRequests  = 64
	DefaultRate         = 200
	DefaultWriteTimeout = 30 * time.Second
	DefaultBodyTimeout  = 30 * time.Second
	DefaultStopTimeout  = 10 * time.Second

	headerTimeout  = 10 * time.Second
	keepAlive      = 2 * time.Minute
	maxHeaderBytes = 16 << 10
)

// HTTPOptions refine ServeHTTP. The zero value of a field means what its comment says.
type HTTPOptions struct {
	// Tokens are the bearer tokens of clients. Empty: none is needed, which only a listener on a loopback address allows.
	Tokens []Token
	// Hosts are names that clients may reach the server by, beside localhost and addresses, which no foreign web page can
	// make its own.
	Hosts []string
	// Origins are those of web pages that may use the server, beside pages that it would serve itself. Empty: none.
	Origins []string
	// MaxConns bounds the open connections. Zero is DefaultMaxConns.
	MaxConns int
	// MaxSessions bounds the open MCP sessions. Zero is DefaultMaxSessions.
	MaxSessions int
	// MaxRequests bounds the requests of one owner, or of one address without tokens, that are under way at once, streams
	// included. Zero is DefaultMaxRequests.
	MaxRequests int
	// Rate bounds the requests per second of one owner or address; twice as many may come at once. Zero is DefaultRate.
	Rate int
	// BodyTimeout is how long a client may take to send a request's body, WriteTimeout to take a piece of an answer.
	// Zero is DefaultBodyTimeout and DefaultWriteTimeout.
	BodyTimeout, WriteTimeout time.Duration
	// StopTimeout is how long requests under way may take to end when ctx does. Zero is DefaultStopTimeout.
	StopTimeout time.Duration
}

func (o *HTTPOptions) complete() {
	fill := func(field *int, value int) {
		if *field <= 0 {
			*field = value
		}
	}
	fill(&o.MaxConns, DefaultMaxConns)
	fill(&o.MaxSessions, DefaultMaxSessions)
	fill(&o.MaxRequests, DefaultMaxRequests)
	fill(&o.Rate, DefaultRate)
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{{&o.BodyTimeout, DefaultBodyTimeout}, {&o.WriteTimeout, DefaultWriteTimeout}, {&o.StopTimeout, DefaultStopTimeout}} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
}

// ErrNoToken is the refusal to serve other machines without tokens.
var ErrNoToken = errors.New("a listener off the loopback addresses needs bearer tokens")

// ServeHTTP serves clients on l until ctx ends, then ends the requests under way and returns. It closes l. For TLS pass a
// listener that speaks it. opts may be nil. One server serves HTTP once.
func (s *Server) ServeHTTP(ctx context.Context, l net.Listener, opts *HTTPOptions) error {
	defer l.Close() // closed already when all went well
	var o HTTPOptions
	if opts != nil {
		o = *opts
	}
	o.complete()
	keys, err := newKeyring(o.Tokens)
	if err != nil {
		return err
	}
	if len(o.Tokens) == 0 && !isLoopback(l.Addr()) {
		return ErrNoToken
	}
	f := s.newFront(o, keys)
	srv := &http.Server{
		Handler: f, ReadHeaderTimeout: headerTimeout, IdleTimeout: keepAlive, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: errorLog(s.log), BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(newCappedListener(l, o.MaxConns)) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
	return f.stop(ctx, srv)
}

// front is the HTTP side of a server.
type front struct {
	server    *Server
	opts      HTTPOptions
	keys      *keyring
	rates     *rates
	slots     *slots
	stateful  *mcp.Server
	legacy    http.Handler // up to 2025-11-25, with sessions
	stateless http.Handler // from 2026-07-28 on
}

func (s *Server) newFront(o HTTPOptions, keys *keyring) *front {
	f := &front{server: s, opts: o, keys: keys, rates: newRates(o.Rate), slots: newSlots(o.MaxRequests), stateful: s.build(s.bySession)}
	handlerOf := func(srv *mcp.Server, stateless bool) http.Handler {
		return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, &mcp.StreamableHTTPOptions{
			Stateless: stateless, Logger: quiet(s.log), SessionTimeout: s.opts.IdleTimeout, MaxRequestBodyBytes: MaxMessageBytes,
			PropagateRequestCancellation: true, DisableLocalhostProtection: true, // checkHost is stricter
		})
	}
	f.legacy = handlerOf(f.stateful, false)
	f.stateless = handlerOf(s.build(s.byOwner), true)
	return f
}

// stop ends the server: no new requests, the end of those under way, and after StopTimeout that of their connections.
func (f *front) stop(ctx context.Context, srv *http.Server) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.opts.StopTimeout)
	defer cancel()
	f.server.mu.Lock()
	f.server.ending = true
	f.server.mu.Unlock()
	f.server.cancelScopes()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ss := range f.stateful.Sessions() {
			_ = ss.Close() // its end is all that is wanted
		}
	}()
	err := srv.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = srv.Close() // whoever still takes an answer took too long
	}
	select {
	case <-done:
	case <-ctx.Done():
	}
	return err
}

// cancelScopes ends the calls under way.
func (s *Server) cancelScopes() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for sc := range s.scopes {
		sc.cancel()
	}
}

// ServeHTTP answers one request: cheap checks first, the client's token before anything that costs.
func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	paced := &pacedWriter{ResponseWriter: w, timeout: f.opts.WriteTimeout}
	defer paced.extend() // the server writes the end of the answer after this
	w = paced
	h := w.Header()
	h.Set("X-Content-Type-Options", "nosniff")
	if r.ContentLength != 0 {
		// Before a refusal net/http would read the body, for as long as its sender likes. post takes this back.
		h.Set("Connection", "close")
		paced.unread = r.Body
	}
	switch {
	case !r.ProtoAtLeast(1, 1):
		http.Error(w, "HTTP/1.1 is needed", http.StatusBadRequest)
	case r.URL.Host != "" || r.URL.RawPath != "" || r.URL.Path != PathMCP && r.URL.Path != PathHealth:
		http.Error(w, "not found", http.StatusNotFound)
	case !f.hostAllowed(r.Host):
		http.Error(w, "this server is not known by that Host; see --allow-host", http.StatusForbidden)
	case !f.originAllowed(r):
		http.Error(w, "requests of that Origin are not allowed; see --allow-origin", http.StatusForbidden)
	case r.URL.Path == PathHealth:
		f.health(w, r)
	case r.Method == http.MethodOptions && r.Header.Get("Origin") != "":
		f.preflight(w, r)
	case r.Method != http.MethodPost && r.Method != http.MethodGet && r.Method != http.MethodDelete:
		h.Set("Allow", "GET, POST, DELETE")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
	default:
		f.crossOrigin(w, r)
		f.admit(w, r)
	}
}

// admit holds a client to its rate and asks for its token.
func (f *front) admit(w http.ResponseWriter, r *http.Request) {
	address := remoteIP(r)
	if !f.rates.take("address " + address) {
		tooMany(w, "too many requests")
		return
	}
	if f.keys == nil {
		f.bounded(w, r, "address "+address)
		return
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="workcell"`)
	f.keys.require(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Del("WWW-Authenticate")
		owner := "owner " + auth.TokenInfoFromContext(r.Context()).UserID
		if !f.rates.take(owner) {
			tooMany(w, "too many requests")
			return
		}
		f.bounded(w, r, owner)
	})).ServeHTTP(w, r)
}

func tooMany(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, why, http.StatusTooManyRequests)
}

// bounded holds a client to its number of requests at once.
func (f *front) bounded(w http.ResponseWriter, r *http.Request, client string) {
	leave, ok := f.slots.enter(client)
	if !ok {
		tooMany(w, "too many requests at once")
		return
	}
	defer leave()
	if r.Method == http.MethodPost {
		f.post(w, r)
		return
	}
	if r.Method == http.MethodDelete {
		f.endSession(r)
	}
	f.wire(r.Header.Get(headerVersion), false).ServeHTTP(w, r)
}

// endSession ends the calls of a session that its client ends; the SDK would wait for them.
func (f *front) endSession(r *http.Request) {
	id := r.Header.Get(headerSession)
	if id == "" {
		return
	}
	owner := localOwner
	if info := auth.TokenInfoFromContext(r.Context()); info != nil {
		owner = info.UserID
	}
	f.server.mu.Lock()
	defer f.server.mu.Unlock()
	for ss, sc := range f.server.bound {
		if ss.ID() == id && sc.owner == owner {
			sc.cancel()
		}
	}
}

// health tells that the server answers, and nothing else: it asks for no token.
func (f *front) health(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	fmt.Fprintln(w, `{"status":"ok"}`)
}

// hostAllowed protects from DNS rebinding: a web page can make its own name lead here, but not an address or a name that
// somebody else has.
func (f *front) hostAllowed(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if host == "localhost" || net.ParseIP(host) != nil {
		return true
	}
	return slices.ContainsFunc(f.opts.Hosts, func(h string) bool { return strings.EqualFold(h, host) || strings.EqualFold(h, hostport) })
}

// originAllowed tells whether the request comes from no web page, from one of this server, or from one that is allowed.
func (f *front) originAllowed(r *http.Request) bool {
	values := r.Header.Values("Origin")
	if len(values) == 0 {
		return true
	}
	if len(values) > 1 {
		return false
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	origin := values[0]
	return strings.EqualFold(origin, scheme+"://"+r.Host) || slices.ContainsFunc(f.opts.Origins, func(o string) bool { return strings.EqualFold(o, origin) })
}

// crossOrigin lets an allowed page of another origin read the answer.
func (f *front) crossOrigin(w http.ResponseWriter, r *http.Request) {
	if origin := r.Header.Get("Origin"); origin != "" {
		h := w.Header()
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Expose-Headers", headerSession)
		h.Add("Vary", "Origin")
	}
}

func (f *front) preflight(w http.ResponseWriter, r *http.Request) {
	f.crossOrigin(w, r)
	w.Header().Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
	w.Header().Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Accept, Last-Event-ID, Mcp-Method, Mcp-Name, "+headerSession+", "+headerVersion)
	w.WriteHeader(http.StatusNoContent)
}

func isLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

func remoteIP(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}
