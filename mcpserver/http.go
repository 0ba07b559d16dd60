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

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/internal/httpguard"
)

// PathMCP is the URL path of the MCP endpoint of ServeHTTP.
const PathMCP = "/mcp"

const (
	pathHealth = "/healthz" // liveness: the process works
	pathReady  = "/readyz"  // readiness: the tools work too
)

// Defaults of HTTPOptions, also used by the workcell command.
const (
	DefaultMaxConns = 256
	DefaultRate     = 200
)

// HTTPOptions configures ServeHTTP. The field comments describe the zero values. Negative values are errors. A client
// is the owner of a token, or an IP address if the token is invalid. Without tokens, all requests are from one client.
// Use a proxy in front of the server for further limits, for example connections per address.
type HTTPOptions struct {
	// Tokens are the clients' bearer tokens. If empty, no token is required, which is allowed only for a listener on a
	// loopback address.
	Tokens []Token
	// TLS is the configuration for HTTPS. If nil, the server uses plain HTTP.
	TLS *tls.Config
	// Hosts are additional host names of the server. Requests for other hosts are refused, except for localhost and IP
	// addresses, because a foreign web page cannot use these as a name.
	Hosts []string
	// Origins are the origins of web pages that may use the server. Pages of the server's own host are always allowed.
	Origins []string
	// MaxConns is the maximum number of open connections. Further connections wait to be accepted. If zero, it defaults
	// to DefaultMaxConns.
	MaxConns int
	// MaxSessions is the maximum number of open MCP sessions. MaxOwnerSessions is the maximum per client. If zero, they
	// default to 512 and 128.
	MaxSessions, MaxOwnerSessions int
	// MaxRequests is the maximum number of concurrent requests from one client. It does not count the event stream of
	// each session. If zero, it defaults to 64.
	MaxRequests int
	// MaxBodyBytes is the maximum memory for the bodies of running requests. One client may use a quarter of it, or the
	// size of one message if that is larger. Messages above MaxBodyBytes are refused. If zero, it defaults to 256 MiB.
	MaxBodyBytes int64
	// Rate is the maximum number of requests per second from one client. The burst size is twice the rate. If zero, it
	// defaults to DefaultRate.
	Rate int
	// BodyTimeout is the maximum time to receive a request body. WriteTimeout is the maximum time for a client to
	// receive one write of an answer. If zero, they default to 30 seconds.
	BodyTimeout, WriteTimeout time.Duration
	// StopTimeout is the maximum time for running requests to end after ctx is done. If zero, it defaults to 10
	// seconds.
	StopTimeout time.Duration
}

// withDefaults returns opts with defaults filled in. opts may be nil.
func withDefaults(opts *HTTPOptions) (HTTPOptions, error) {
	o := *cmp.Or(opts, &HTTPOptions{})
	err := errors.Join(
		fill("MaxConns", &o.MaxConns, DefaultMaxConns),
		fill("MaxSessions", &o.MaxSessions, 512),
		fill("MaxOwnerSessions", &o.MaxOwnerSessions, 128),
		fill("MaxRequests", &o.MaxRequests, 64),
		fill("MaxBodyBytes", &o.MaxBodyBytes, 256<<20),
		fill("Rate", &o.Rate, DefaultRate),
		fill("BodyTimeout", &o.BodyTimeout, 30*time.Second),
		fill("WriteTimeout", &o.WriteTimeout, 30*time.Second),
		fill("StopTimeout", &o.StopTimeout, 10*time.Second),
	)
	return o, err
}

// fill sets a zero field to the default. It returns an error for a negative value.
func fill[T int | int64 | time.Duration](name string, field *T, value T) error {
	if *field < 0 {
		return fmt.Errorf("%w: mcpserver: %s is %v, must not be negative", backend.ErrInvalid, name, *field)
	}
	*field = cmp.Or(*field, value)
	return nil
}

// Check returns an error if the options are invalid for every listener. For a negative number, the error wraps
// backend.ErrInvalid. o may be nil.
func (o *HTTPOptions) Check() error {
	full, err := withDefaults(o)
	if err == nil {
		_, _, err = full.trust()
	}
	return err
}

// trust returns the token verifier and the check of request origins.
func (o HTTPOptions) trust() (auth.TokenVerifier, *http.CrossOriginProtection, error) {
	verify, err := verifier(o.Tokens)
	origins := http.NewCrossOriginProtection()
	for _, origin := range o.Origins {
		err = errors.Join(err, origins.AddTrustedOrigin(origin))
	}
	return verify, origins, err
}

// ErrNoToken means a listener accepts connections from other hosts without tokens.
var ErrNoToken = errors.New("a listener on a non-loopback address requires bearer tokens")

// ServeHTTP serves clients on l until ctx is done. Then it ends the running requests and returns. It closes l, which
// must be a listener of plain connections. opts may be nil. It can be called only once per Server.
func (s *Server) ServeHTTP(ctx context.Context, l net.Listener, opts *HTTPOptions) error {
	defer l.Close() // already closed on success
	o, err := withDefaults(opts)
	if err != nil {
		return err
	}
	if len(o.Tokens) == 0 && !httpguard.IsLoopback(l.Addr()) {
		return ErrNoToken
	}
	h, err := s.newHTTPHandler(o)
	if err != nil {
		return err
	}
	srv, failed := httpguard.Serve(ctx, l, h, o.MaxConns, o.TLS, s.log)
	select {
	case err = <-failed:
	case <-ctx.Done():
	case <-s.ctx.Done():
	}
	return errors.Join(err, h.stop(ctx, srv))
}

// ServeUnready serves HTTP for a program without a Server until ctx is done, for example while the database is down. It
// answers /healthz with 200, and all other paths, including /readyz, with 503. It closes l. opts may be nil.
func ServeUnready(ctx context.Context, l net.Listener, opts *HTTPOptions) error {
	defer l.Close() // already closed on success
	o, err := withDefaults(opts)
	if err != nil {
		return err
	}
	unready := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close") // the next request may be for the Server
		if r.URL.Path == pathHealth {
			health(w, r)
			return
		}
		w.Header().Set("Retry-After", "5")
		http.Error(w, "the server is not ready; try again later", http.StatusServiceUnavailable)
	})
	srv, failed := httpguard.Serve(ctx, l, unready, o.MaxConns, o.TLS, slog.New(slog.DiscardHandler))
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	return errors.Join(err, httpguard.Stop(ctx, srv, 5*time.Second)) // a client may have just connected
}

// httpHandler handles the requests of ServeHTTP.
type httpHandler struct {
	server    *Server
	opts      HTTPOptions
	origins   *http.CrossOriginProtection
	limiter   *httpguard.Limiter
	owned     http.Handler // after the cheap checks; requires a token if tokens are configured
	sessions  *mcp.Server
	legacy    http.Handler // revisions up to 2025-11-25, with sessions
	stateless http.Handler // revision 2026-07-28 and later
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
		known := auth.RequireBearerToken(verify, &auth.RequireBearerTokenOptions{AllowMissingExpiration: true})
		h.owned = h.strangers(verify, known(h.owned))
	}
	handlerOf := func(srv *mcp.Server, stateless bool) http.Handler {
		return mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return srv }, &mcp.StreamableHTTPOptions{
			// Without SessionTimeout, because Server.sweep ends idle sessions.
			Stateless: stateless, Logger: quiet(s.log), MaxRequestBodyBytes: MaxMessageBytes,
			PropagateRequestCancellation: true, DisableLocalhostProtection: true, // httpguard is stricter
		})
	}
	h.legacy = handlerOf(h.sessions, false)
	h.stateless = handlerOf(s.build(s.byOwner, transportTCP), true)
	return h, nil
}

// stop stops the server. It accepts no new requests, waits for running requests, and closes their connections after
// StopTimeout.
func (h *httpHandler) stop(ctx context.Context, srv *http.Server) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), h.opts.StopTimeout)
	defer cancel()
	h.limiter.End()
	h.server.mu.Lock()
	h.server.closed = true
	for sc := range h.server.scopes {
		sc.cancel()
	}
	h.server.mu.Unlock()
	down := make(chan error, 1)
	go func() { down <- httpguard.Stop(ctx, srv, h.opts.StopTimeout) }()
	select {
	case <-h.limiter.Drained: // every call has an answer, which needs the session
	case <-ctx.Done():
	}
	for ss := range h.sessions.Sessions() {
		closeSession(ss)
	}
	return <-down
}

// ServeHTTP handles one request. It does the cheap checks first, and checks the client's token before anything
// expensive.
func (h *httpHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	paced := &httpguard.PacedWriter{ResponseWriter: w, Timeout: h.opts.WriteTimeout}
	defer paced.Extend() // the server writes the rest of the answer after this
	w = paced
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if r.ContentLength != 0 {
		// Without this, net/http would read the whole body before it sends a refusal. read reverts it.
		w.Header().Set("Connection", "close")
	}
	switch {
	case !r.ProtoAtLeast(1, 1):
		http.Error(w, "HTTP/1.1 is required", http.StatusBadRequest)
	case r.URL.Host != "" || r.URL.RawPath != "" || !slices.Contains([]string{PathMCP, pathHealth, pathReady}, r.URL.Path):
		http.Error(w, "not found", http.StatusNotFound)
	case !httpguard.HostAllowed(r.Host, h.opts.Hosts...):
		http.Error(w, "this Host is not allowed", http.StatusForbidden)
	case !httpguard.OriginAllowed(h.origins, r):
		http.Error(w, "this Origin is not allowed", http.StatusForbidden)
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

// strangers applies the request rate of the IP address to requests without a valid token. Verifying a token is cheap.
func (h *httpHandler) strangers(verify auth.TokenVerifier, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		if _, err := verify(r.Context(), strings.TrimSpace(secret), r); err != nil {
			address, _, _ := net.SplitHostPort(r.RemoteAddr) // always valid, because net/http set it
			if refusal := h.limiter.Ask("address " + address); refusal != nil {
				refusal.Write(w)
				return
			}
		}
		// For the refusal of an invalid token by next. After a valid token, bounded deletes it.
		w.Header().Set("WWW-Authenticate", `Bearer realm="workcell"`)
		next.ServeHTTP(w, r)
	})
}

// bounded applies the limits on request rate and concurrent requests of a client. It does not count a session's event
// stream, which may be open for hours. The SDK allows one stream per session, and the number of sessions is limited.
func (h *httpHandler) bounded(w http.ResponseWriter, r *http.Request) {
	w.Header().Del("WWW-Authenticate") // set by strangers
	client := ownerOf(auth.TokenInfoFromContext(r.Context()))
	if refusal := h.limiter.Ask(client); refusal != nil {
		refusal.Write(w)
		return
	}
	if r.Method != http.MethodGet {
		if refusal := h.limiter.Take(client, httpguard.Requests, 1); refusal != nil {
			refusal.Write(w)
			return
		}
		defer h.limiter.Give(client, httpguard.Requests, 1)
	}
	stream := &commented{ResponseWriter: w, every: h.server.commentEvery}
	defer stream.end()
	switch {
	case r.Method == http.MethodPost:
		h.post(stream, r, client)
	case r.Header.Get(headerVersion) >= firstStateless:
		h.stateless.ServeHTTP(stream, r)
	default:
		h.streamOrEnd(stream, r, client)
	}
}

// streamOrEnd handles GET, which opens the event stream of a session, and DELETE, which ends a session.
func (h *httpHandler) streamOrEnd(w http.ResponseWriter, r *http.Request, client string) {
	sc, version := h.server.scopeOf(client, r.Header.Get(headerSession)), r.Header.Get(headerVersion)
	switch {
	case sc == nil: // the SDK refuses the request
	case r.Method == http.MethodGet:
		h.server.addStreams(sc, 1)
		defer h.server.addStreams(sc, -1)
	case version == "" || slices.Contains(mcp.SupportedProtocolVersions(), version): // otherwise, the SDK refuses
		sc.cancel() // the SDK would wait for the calls
	}
	h.legacy.ServeHTTP(w, r)
}

// health reports a running server. It requires no token.
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

// crossOrigin allows a page of another allowed origin to read the answer.
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
	w.Header().Set("Access-Control-Allow-Headers", "Authorization, Content-Type, Accept, Last-Event-ID, "+
		"Mcp-Method, Mcp-Name, "+headerSession+", "+headerVersion)
	w.WriteHeader(http.StatusNoContent)
}
