package mcpserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/net/netutil"
)

// PathMCP is where ServeHTTP serves MCP.
const PathMCP = "/mcp"

const (
	pathHealth = "/healthz" // the process works
	pathReady  = "/readyz"  // so do its tools
)

// Defaults of HTTPOptions that the command names too.
const (
	DefaultMaxConns = 256
	DefaultRate     = 200
)

// Bounds of what comes before a request.
const (
	headerTimeout  = 10 * time.Second
	keepAlive      = 2 * time.Minute
	maxHeaderBytes = 16 << 10
)

// HTTPOptions refine ServeHTTP. The zero value of a field means what its comment says; a negative one is an error. A
// client is the owner that a token names; before its token is known it is its address. Without tokens there is one
// client. What these limits leave open, such as connections of one address, is for a proxy before the server.
type HTTPOptions struct {
	// Tokens are the bearer tokens of clients. Empty: none is needed, which only a listener on a loopback address allows.
	Tokens []Token
	// TLS makes the connections of the listener those of HTTPS. Nil: they are plain.
	TLS *tls.Config
	// Hosts are names that clients may reach the server by, beside localhost and addresses, which no foreign web page can
	// make its own.
	Hosts []string
	// Origins are those of web pages that may use the server, beside pages of its own host. Empty: none.
	Origins []string
	// MaxConns bounds the open connections; more wait to be accepted. Zero is DefaultMaxConns.
	MaxConns int
	// MaxSessions bounds the open MCP sessions, MaxOwnerSessions those of one client. Zero is 512, and 128.
	MaxSessions, MaxOwnerSessions int
	// MaxRequests bounds the requests of one client that are under way at once, without the stream of events that each of
	// its sessions may have. Zero is 64.
	MaxRequests int
	// MaxBodyBytes bounds what is in memory of the bodies of requests under way; one client may have a quarter of it, but
	// always one message. Zero is 256 MiB.
	MaxBodyBytes int64
	// Rate bounds the requests per second of one client; twice as many may come at once. Zero is DefaultRate.
	Rate int
	// BodyTimeout is how long a client may take to send a request's body, WriteTimeout to take a piece of an answer.
	// Zero is 30 seconds.
	BodyTimeout, WriteTimeout time.Duration
	// StopTimeout is how long requests under way may take to end when ctx does. Zero is 10 seconds.
	StopTimeout time.Duration
}

// completed returns options, which may be nil, with what was left out.
func completed(opts *HTTPOptions) (o HTTPOptions, err error) {
	if opts != nil {
		o = *opts
	}
	err = errors.Join(
		fill("MaxConns", &o.MaxConns, DefaultMaxConns), fill("MaxSessions", &o.MaxSessions, 512),
		fill("MaxOwnerSessions", &o.MaxOwnerSessions, 128), fill("MaxRequests", &o.MaxRequests, 64),
		fill("MaxBodyBytes", &o.MaxBodyBytes, 256<<20), fill("Rate", &o.Rate, DefaultRate),
		fill("BodyTimeout", &o.BodyTimeout, 30*time.Second), fill("WriteTimeout", &o.WriteTimeout, 30*time.Second),
		fill("StopTimeout", &o.StopTimeout, 10*time.Second),
	)
	return o, err
}

// fill sets a field that is zero to its default, and refuses a negative one.
func fill[T int | int64 | time.Duration](name string, field *T, value T) error {
	if *field < 0 {
		return fmt.Errorf("mcpserver: %s is %v, must not be negative", name, *field)
	}
	*field = cmp.Or(*field, value)
	return nil
}

// Check returns an error if ServeHTTP cannot use the options with any listener.
func (o *HTTPOptions) Check() error {
	full, err := completed(o)
	if err == nil {
		_, _, err = full.trust()
	}
	return err
}

// trust returns the checks of tokens and of the pages that requests come from.
func (o HTTPOptions) trust() (auth.TokenVerifier, *http.CrossOriginProtection, error) {
	verify, err := verifier(o.Tokens)
	origins := http.NewCrossOriginProtection()
	for _, origin := range o.Origins {
		err = errors.Join(err, origins.AddTrustedOrigin(origin))
	}
	return verify, origins, err
}

// ErrNoToken is the refusal to serve other machines without tokens.
var ErrNoToken = errors.New("a listener on a non-loopback address requires bearer tokens")

// ServeHTTP serves clients on l until ctx ends, then ends the requests under way and returns. It closes l, a
// listener of plain connections. opts may be nil. One server serves HTTP once.
func (s *Server) ServeHTTP(ctx context.Context, l net.Listener, opts *HTTPOptions) error {
	defer l.Close() // closed already when all went well
	o, err := completed(opts)
	if err != nil {
		return err
	}
	if len(o.Tokens) == 0 && !isLoopback(l.Addr()) {
		return ErrNoToken
	}
	h, err := s.newHTTPHandler(o)
	if err != nil {
		return err
	}
	srv, failed := o.start(ctx, l, h, s.log)
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
	return h.stop(ctx, srv)
}

// start serves on l. If that fails, the channel returns the error.
func (o HTTPOptions) start(ctx context.Context, l net.Listener, h http.Handler, log *slog.Logger) (
	*http.Server, <-chan error) {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: keepAlive, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	failed := make(chan error, 1)
	l = netutil.LimitListener(l, o.MaxConns)
	if o.TLS != nil {
		l = tls.NewListener(l, o.TLS) // outermost, so that net/http sees what the connections are
	}
	go func() { failed <- srv.Serve(l) }()
	return srv, failed
}

// ServeUnready answers for a program that has no Server yet, for example because its database is down, until ctx ends:
// /healthz with 200, and every other path, /readyz included, with 503. It closes l. opts may be nil.
func ServeUnready(ctx context.Context, l net.Listener, opts *HTTPOptions) error {
	o, err := completed(opts)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	srv, failed := o.start(ctx, l, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close") // the next request may be for the Server
		if r.URL.Path == pathHealth {
			health(w, r)
			return
		}
		w.Header().Set("Retry-After", "5")
		http.Error(w, "the server is not ready; try again later", http.StatusServiceUnavailable)
	}), slog.New(slog.DiscardHandler))
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return srv.Close()
	}
}

// httpHandler answers the requests of ServeHTTP.
type httpHandler struct {
	server    *Server
	opts      HTTPOptions
	origins   *http.CrossOriginProtection
	limiter   *limiter
	owned     http.Handler // of requests that passed the cheap checks: asks for a token where one is needed
	sessions  *mcp.Server
	legacy    http.Handler // up to 2025-11-25, with sessions
	stateless http.Handler // from 2026-07-28 on
}

func (s *Server) newHTTPHandler(o HTTPOptions) (*httpHandler, error) {
	verify, origins, err := o.trust()
	if err != nil {
		return nil, err
	}
	sessions := s.build(s.bySession, transportTCP)
	h := &httpHandler{server: s, opts: o, origins: origins, limiter: newLimiter(o), sessions: sessions}
	h.owned = http.HandlerFunc(h.bounded)
	if len(o.Tokens) > 0 {
		h.owned = h.strangers(auth.RequireBearerToken(verify, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})(h.owned))
	}
	handlerOf := func(srv *mcp.Server, stateless bool) http.Handler {
		return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, &mcp.StreamableHTTPOptions{
			Stateless: stateless, Logger: quiet(s.log), MaxRequestBodyBytes: MaxMessageBytes, // sweep ends idle sessions
			PropagateRequestCancellation: true, DisableLocalhostProtection: true, // hostAllowed is stricter
		})
	}
	h.legacy = handlerOf(h.sessions, false)
	h.stateless = handlerOf(s.build(s.byOwner, transportTCP), true)
	return h, nil
}

// stop ends the server: no new requests, the end of those under way, and after StopTimeout that of their connections.
func (h *httpHandler) stop(ctx context.Context, srv *http.Server) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.opts.StopTimeout)
	defer cancel()
	h.limiter.end()
	h.server.mu.Lock()
	h.server.closed = true
	for sc := range h.server.scopes {
		sc.cancel()
	}
	h.server.mu.Unlock()
	down := make(chan error, 1)
	go func() { down <- srv.Shutdown(ctx) }()
	select {
	case <-h.limiter.drained: // every call has its answer, which needs its session
	case <-ctx.Done():
	}
	for ss := range h.sessions.Sessions() {
		closeSession(ss)
	}
	err := <-down
	if errors.Is(err, context.DeadlineExceeded) {
		err = srv.Close() // who still takes an answer took too long
	}
	return err
}

// ServeHTTP answers one request: cheap checks first, the client's token before anything that costs.
func (h *httpHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	paced := &pacedWriter{ResponseWriter: w, timeout: h.opts.WriteTimeout}
	defer paced.extend() // the server writes the end of the answer after this
	w = paced
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if r.ContentLength != 0 {
		// Before a refusal net/http would read the body, for as long as its sender likes. read takes this back.
		w.Header().Set("Connection", "close")
	}
	switch {
	case !r.ProtoAtLeast(1, 1):
		http.Error(w, "HTTP/1.1 is required", http.StatusBadRequest)
	case r.URL.Host != "" || r.URL.RawPath != "" || !slices.Contains([]string{PathMCP, pathHealth, pathReady}, r.URL.Path):
		http.Error(w, "not found", http.StatusNotFound)
	case !h.hostAllowed(r.Host):
		http.Error(w, "this Host is not allowed; see --allow-host", http.StatusForbidden)
	case !h.originAllowed(r):
		http.Error(w, "this Origin is not allowed; see --allow-origin", http.StatusForbidden)
	case r.URL.Path != PathMCP:
		health(w, r)
	case r.Method == http.MethodOptions && r.Header.Get("Origin") != "":
		preflight(w, r)
	case r.Method != http.MethodPost && r.Method != http.MethodGet && r.Method != http.MethodDelete:
		w.Header().Set("Allow", "GET, POST, DELETE")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
	default:
		crossOrigin(w, r)
		h.owned.ServeHTTP(w, r)
	}
}

// strangers holds clients whose tokens are not known yet to the rate of their address.
func (h *httpHandler) strangers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		address, _, _ := net.SplitHostPort(r.RemoteAddr) // net/http made it
		if no := h.limiter.ask("address " + address); no != nil {
			no.write(w)
			return
		}
		w.Header().Set("WWW-Authenticate", `Bearer realm="workcell"`)
		next.ServeHTTP(w, r)
	})
}

// bounded holds a client to its rate and its number of requests at once. A session's stream of events is not counted:
// it may be open for hours, the SDK allows one per session, and the number of sessions is bounded.
func (h *httpHandler) bounded(w http.ResponseWriter, r *http.Request) {
	w.Header().Del("WWW-Authenticate")
	client := ownerOf(auth.TokenInfoFromContext(r.Context()))
	no := h.limiter.ask(client)
	if no == nil && r.Method != http.MethodGet {
		if no = h.limiter.take(client, requests, 1); no == nil {
			defer h.limiter.give(client, requests, 1)
		}
	}
	switch {
	case no != nil:
		no.write(w)
	case r.Method == http.MethodPost:
		h.post(w, r, client)
	case r.Header.Get(headerVersion) >= firstStateless:
		h.stateless.ServeHTTP(w, r)
	default:
		if r.Method == http.MethodDelete {
			h.server.endSession(client, r.Header.Get(headerSession))
		}
		h.legacy.ServeHTTP(w, r)
	}
}

// endSession ends the calls of a session that its client ends; the SDK would wait for them.
func (s *Server) endSession(owner, id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ss, sc := range s.bound {
		if id != "" && ss.ID() == id && sc.owner == owner {
			sc.cancel()
		}
	}
}

// health answers that the server is up, and nothing else: it asks for no token.
func health(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	fmt.Fprintln(w, `{"status":"ok"}`)
}

// hostAllowed protects from DNS rebinding: a web page can make its own name lead here, but not an address or a name
// that somebody else has.
func (h *httpHandler) hostAllowed(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if host == "localhost" || net.ParseIP(host) != nil {
		return true
	}
	return slices.ContainsFunc(h.opts.Hosts, func(h string) bool { return strings.EqualFold(h, host) || strings.EqualFold(h, hostport) })
}

// originAllowed reports whether the request comes from no web page, from one of this server's host, or from one that is
// allowed.
func (h *httpHandler) originAllowed(r *http.Request) bool {
	changing := *r
	changing.Method = http.MethodPost // GET opens a stream of events, so that it is to be checked too
	return h.origins.Check(&changing) == nil
}

// crossOrigin lets an allowed page of another origin read the answer.
func crossOrigin(w http.ResponseWriter, r *http.Request) {
	if origin := r.Header.Get("Origin"); origin != "" {
		h := w.Header()
		h.Set("Access-Control-Allow-Origin", origin)
		h.Set("Access-Control-Expose-Headers", headerSession)
		h.Add("Vary", "Origin")
	}
}

func preflight(w http.ResponseWriter, r *http.Request) {
	crossOrigin(w, r)
	w.Header().Set("Access-Control-Allow-Methods", "GET, POST, DELETE")
	w.Header().Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Accept, Last-Event-ID, Mcp-Method, Mcp-Name, "+headerSession+", "+headerVersion)
	w.WriteHeader(http.StatusNoContent)
}

func isLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
