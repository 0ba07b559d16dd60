package mcpserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/auth"
	"github.com/modelcontextprotocol/go-sdk/mcp"
	"golang.org/x/net/netutil"
)

// Paths that ServeHTTP answers.
const (
	PathMCP    = "/mcp"
	PathHealth = "/healthz"
)

// Defaults and bounds of HTTPOptions.
const (
	DefaultMaxConns         = 256
	DefaultMaxSessions      = 512
	DefaultMaxOwnerSessions = 128
	DefaultMaxRequests      = 64
	DefaultMaxBodyBytes     = 256 << 20
	DefaultRate             = 200
	DefaultWriteTimeout     = 30 * time.Second
	DefaultBodyTimeout      = 30 * time.Second
	DefaultStopTimeout      = 10 * time.Second

	headerTimeout  = 10 * time.Second
	keepAlive      = 2 * time.Minute
	maxHeaderBytes = 16 << 10
)

// HTTPOptions refine ServeHTTP. The zero value of a field means what its comment says; a negative one is an error. A
// client is the owner that a token names; before its token is known it is its address. Without tokens there is one client.
// What these limits leave open, such as connections of one address, is for a proxy before the server.
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
	// MaxSessions bounds the open MCP sessions, MaxOwnerSessions those of one client. Zero is DefaultMaxSessions and
	// DefaultMaxOwnerSessions.
	MaxSessions, MaxOwnerSessions int
	// MaxRequests bounds the requests of one client that are under way at once, without the stream of events that each of
	// its sessions may have. Zero is DefaultMaxRequests.
	MaxRequests int
	// MaxBodyBytes bounds what is in memory of the bodies of requests under way; one client may have a quarter of it, but
	// always one message. Zero is DefaultMaxBodyBytes.
	MaxBodyBytes int64
	// Rate bounds the requests per second of one client; twice as many may come at once. Zero is DefaultRate.
	Rate int
	// BodyTimeout is how long a client may take to send a request's body, WriteTimeout to take a piece of an answer.
	// Zero is DefaultBodyTimeout and DefaultWriteTimeout.
	BodyTimeout, WriteTimeout time.Duration
	// StopTimeout is how long requests under way may take to end when ctx does. Zero is DefaultStopTimeout.
	StopTimeout time.Duration
}

// complete fills in what was left out.
func (o *HTTPOptions) complete() error {
	return errors.Join(
		fill("MaxConns", &o.MaxConns, DefaultMaxConns), fill("MaxSessions", &o.MaxSessions, DefaultMaxSessions),
		fill("MaxOwnerSessions", &o.MaxOwnerSessions, DefaultMaxOwnerSessions), fill("MaxRequests", &o.MaxRequests, DefaultMaxRequests),
		fill("MaxBodyBytes", &o.MaxBodyBytes, DefaultMaxBodyBytes), fill("Rate", &o.Rate, DefaultRate),
		fill("BodyTimeout", &o.BodyTimeout, DefaultBodyTimeout), fill("WriteTimeout", &o.WriteTimeout, DefaultWriteTimeout),
		fill("StopTimeout", &o.StopTimeout, DefaultStopTimeout),
	)
}

// fill sets a field that is zero to its default, and refuses a negative one.
func fill[T int | int64 | time.Duration](name string, field *T, value T) error {
	if *field < 0 {
		return fmt.Errorf("mcpserver: %s is %v, it must not be negative", name, *field)
	}
	*field = cmp.Or(*field, value)
	return nil
}

// ErrNoToken is the refusal to serve other machines without tokens.
var ErrNoToken = errors.New("a listener off the loopback addresses needs bearer tokens")

// ServeHTTP serves clients on l until ctx ends, then ends the requests under way and returns. It closes l, a
// listener of plain connections. opts may be nil. One server serves HTTP once.
func (s *Server) ServeHTTP(ctx context.Context, l net.Listener, opts *HTTPOptions) error {
	defer l.Close() // closed already when all went well
	var o HTTPOptions
	if opts != nil {
		o = *opts
	}
	if err := o.complete(); err != nil {
		return err
	}
	if len(o.Tokens) == 0 && !isLoopback(l.Addr()) {
		return ErrNoToken
	}
	h, err := s.newHTTPHandler(o)
	if err != nil {
		return err
	}
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: keepAlive, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: errorLog(s.log), BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	failed := make(chan error, 1)
	limited := netutil.LimitListener(l, o.MaxConns)
	if o.TLS != nil {
		limited = tls.NewListener(limited, o.TLS) // outermost, so that net/http sees what the connections are
	}
	go func() { failed <- srv.Serve(limited) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
	return h.stop(ctx, srv)
}

// httpHandler answers the requests of ServeHTTP.
type httpHandler struct {
	server    *Server
	opts      HTTPOptions
	keys      *keyring
	origins   *http.CrossOriginProtection
	limiter   *limiter
	stateful  *mcp.Server
	legacy    http.Handler // up to 2025-11-25, with sessions
	stateless http.Handler // from 2026-07-28 on
}

func (s *Server) newHTTPHandler(o HTTPOptions) (*httpHandler, error) {
	keys, err := newKeyring(o.Tokens)
	if err != nil {
		return nil, err
	}
	origins := http.NewCrossOriginProtection()
	for _, origin := range o.Origins {
		if err := origins.AddTrustedOrigin(origin); err != nil {
			return nil, err
		}
	}
	h := &httpHandler{server: s, opts: o, keys: keys, origins: origins, limiter: newLimiter(o), stateful: s.build(s.bySession)}
	h.stateful.AddReceivingMiddleware(bindSessions)
	handlerOf := func(srv *mcp.Server, stateless bool) http.Handler {
		return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, &mcp.StreamableHTTPOptions{
			Stateless: stateless, Logger: quiet(s.log), SessionTimeout: s.opts.IdleTimeout, MaxRequestBodyBytes: MaxMessageBytes,
			PropagateRequestCancellation: true, DisableLocalhostProtection: true, // hostAllowed is stricter
		})
	}
	h.legacy = handlerOf(h.stateful, false)
	h.stateless = handlerOf(s.build(s.byOwner), true)
	return h, nil
}

// stop ends the server: no new requests, the end of those under way, and after StopTimeout that of their connections.
func (h *httpHandler) stop(ctx context.Context, srv *http.Server) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.opts.StopTimeout)
	defer cancel()
	h.server.mu.Lock()
	h.server.ending = true
	h.server.mu.Unlock()
	h.limiter.end()
	h.server.cancelScopes()
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-h.limiter.drained: // every call has its answer, which needs its session
		case <-ctx.Done():
		}
		for ss := range h.stateful.Sessions() {
			_ = ss.Close() // its end is all that is wanted
		}
	}()
	err := srv.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = srv.Close() // who still takes an answer took too long
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
		http.Error(w, "HTTP/1.1 is needed", http.StatusBadRequest)
	case r.URL.Host != "" || r.URL.RawPath != "" || r.URL.Path != PathMCP && r.URL.Path != PathHealth:
		http.Error(w, "not found", http.StatusNotFound)
	case !h.hostAllowed(r.Host):
		http.Error(w, "this server is not known by that Host; see --allow-host", http.StatusForbidden)
	case !h.originAllowed(r):
		http.Error(w, "requests of that Origin are not allowed; see --allow-origin", http.StatusForbidden)
	case r.URL.Path == PathHealth:
		health(w, r)
	case r.Method == http.MethodOptions && r.Header.Get("Origin") != "":
		preflight(w, r)
	case r.Method != http.MethodPost && r.Method != http.MethodGet && r.Method != http.MethodDelete:
		w.Header().Set("Allow", "GET, POST, DELETE")
		http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
	default:
		crossOrigin(w, r)
		h.admit(w, r)
	}
}

// admit asks for the client's token and holds the client to its rate.
func (h *httpHandler) admit(w http.ResponseWriter, r *http.Request) {
	if h.keys == nil {
		h.bounded(w, r, localOwner)
		return
	}
	address, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil || !h.limiter.allow("address "+address) {
		tooMany(w, "too many requests")
		return
	}
	w.Header().Set("WWW-Authenticate", `Bearer realm="workcell"`)
	h.keys.require(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Del("WWW-Authenticate")
		h.bounded(w, r, "owner "+auth.TokenInfoFromContext(r.Context()).UserID)
	})).ServeHTTP(w, r)
}

func tooMany(w http.ResponseWriter, why string) {
	w.Header().Set("Retry-After", "1")
	http.Error(w, why, http.StatusTooManyRequests)
}

// bounded holds a client to its rate and its number of requests at once. A session's stream of events is not counted: it
// may be open for hours, the SDK allows one per session, and the number of sessions is bounded.
func (h *httpHandler) bounded(w http.ResponseWriter, r *http.Request, client string) {
	if !h.limiter.allow(client) {
		tooMany(w, "too many requests")
		return
	}
	if r.Method != http.MethodGet {
		end, status, refusal := h.limiter.begin(client)
		if end == nil {
			w.Header().Set("Retry-After", "1")
			http.Error(w, refusal, status)
			return
		}
		defer end()
	}
	switch r.Method {
	case http.MethodPost:
		h.post(w, r, client)
		return
	case http.MethodDelete:
		h.endSession(r)
	}
	h.wire(r.Header.Get(headerVersion), false).ServeHTTP(w, r)
}

// endSession ends the calls of a session that its client ends; the SDK would wait for them.
func (h *httpHandler) endSession(r *http.Request) {
	id := r.Header.Get(headerSession)
	if id == "" {
		return
	}
	owner := localOwner
	if info := auth.TokenInfoFromContext(r.Context()); info != nil {
		owner = info.UserID
	}
	h.server.mu.Lock()
	defer h.server.mu.Unlock()
	for ss, sc := range h.server.bound {
		if ss.ID() == id && sc.owner == owner {
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

// hostAllowed protects from DNS rebinding: a web page can make its own name lead here, but not an address or a name that
// somebody else has.
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
