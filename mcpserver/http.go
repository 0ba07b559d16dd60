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
)

// Paths that ServeHTTP answers.
const (
	PathMCP    = "/mcp"
	PathHealth = "/healthz"
)

// Defaults and bounds of HTTPOptions.
const (
	DefaultMaxConns         = 256
	DefaultMaxAddressConns  = 64
	DefaultMaxSessions      = 512
	DefaultMaxOwnerSessions = 128
	DefaultMaxRequests      = 64
	DefaultMaxStreams       = 64
	DefaultMaxBodyBytes     = 256 << 20
	DefaultRate             = 200
	DefaultUnusedTimeout    = time.Minute
	DefaultWriteTimeout     = 30 * time.Second
	DefaultBodyTimeout      = 30 * time.Second
	DefaultStopTimeout      = 10 * time.Second

	headerTimeout  = 10 * time.Second
	keepAlive      = 2 * time.Minute
	maxHeaderBytes = 16 << 10
)

// HTTPOptions refine ServeHTTP. The zero value of a field means what its comment says; a negative one is an error. A
// client is the owner that a token names; without tokens it is an address, and before its token is known too. All
// loopback addresses are one client, and so are the addresses of an IPv6 network of 64 bits.
type HTTPOptions struct {
	// Tokens are the bearer tokens of clients. Empty: none is needed, which only a listener on a loopback address allows.
	Tokens []Token
	// TLS makes the connections of the listener those of HTTPS. Nil: they are plain.
	TLS *tls.Config
	// Hosts are names that clients may reach the server by, beside localhost and addresses, which no foreign web page can
	// make its own.
	Hosts []string
	// Origins are those of web pages that may use the server, beside pages that it would serve itself. Empty: none.
	Origins []string
	// MaxConns bounds the open connections, MaxAddressConns those of one address. Zero is DefaultMaxConns and
	// DefaultMaxAddressConns; of a listener on a loopback address, where all have one address, MaxConns for both.
	MaxConns, MaxAddressConns int
	// MaxSessions bounds the open MCP sessions, MaxOwnerSessions those of one client. Zero is DefaultMaxSessions and
	// DefaultMaxOwnerSessions.
	MaxSessions, MaxOwnerSessions int
	// MaxRequests bounds the requests of one client that are under way at once, MaxStreams its streams of events that
	// belong to no call, which do not count as requests. Zero is DefaultMaxRequests and DefaultMaxStreams.
	MaxRequests, MaxStreams int
	// MaxBodyBytes bounds what is in memory of the bodies of requests under way; one client may have a quarter of it, but
	// always one message. Zero is DefaultMaxBodyBytes.
	MaxBodyBytes int64
	// Rate bounds the requests per second of one client; twice as many may come at once. Zero is DefaultRate.
	Rate int
	// UnusedTimeout is how long a session may wait for its first use. Zero is DefaultUnusedTimeout.
	UnusedTimeout time.Duration
	// BodyTimeout is how long a client may take to send a request's body, WriteTimeout to take a piece of an answer.
	// Zero is DefaultBodyTimeout and DefaultWriteTimeout.
	BodyTimeout, WriteTimeout time.Duration
	// StopTimeout is how long requests under way may take to end when ctx does. Zero is DefaultStopTimeout.
	StopTimeout time.Duration
}

// complete fills in what was left out.
func (o *HTTPOptions) complete(loopback bool) error {
	if loopback && o.MaxAddressConns == 0 {
		o.MaxAddressConns = cmp.Or(o.MaxConns, DefaultMaxConns)
	}
	return errors.Join(
		fill("MaxConns", &o.MaxConns, DefaultMaxConns), fill("MaxAddressConns", &o.MaxAddressConns, DefaultMaxAddressConns),
		fill("MaxSessions", &o.MaxSessions, DefaultMaxSessions), fill("MaxOwnerSessions", &o.MaxOwnerSessions, DefaultMaxOwnerSessions),
		fill("MaxRequests", &o.MaxRequests, DefaultMaxRequests), fill("MaxStreams", &o.MaxStreams, DefaultMaxStreams),
		fill("MaxBodyBytes", &o.MaxBodyBytes, DefaultMaxBodyBytes), fill("Rate", &o.Rate, DefaultRate),
		fill("UnusedTimeout", &o.UnusedTimeout, DefaultUnusedTimeout), fill("BodyTimeout", &o.BodyTimeout, DefaultBodyTimeout),
		fill("WriteTimeout", &o.WriteTimeout, DefaultWriteTimeout), fill("StopTimeout", &o.StopTimeout, DefaultStopTimeout),
	)
}

// fill gives a field that is zero its default, and refuses a negative one.
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
	loopback := isLoopback(l.Addr())
	if err := o.complete(loopback); err != nil {
		return err
	}
	keys, err := newKeyring(o.Tokens)
	if err != nil {
		return err
	}
	if len(o.Tokens) == 0 && !loopback {
		return ErrNoToken
	}
	f := s.newFront(o, keys)
	srv := &http.Server{
		Handler: f, ReadHeaderTimeout: headerTimeout, IdleTimeout: keepAlive, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: errorLog(s.log), BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	failed := make(chan error, 1)
	var capped net.Listener = newCappedListener(l, o.MaxConns, o.MaxAddressConns, o.TLS == nil)
	if o.TLS != nil {
		capped = tls.NewListener(capped, o.TLS) // outermost, so that net/http sees what the connections are
	}
	go func() { failed <- srv.Serve(capped) }()
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
	requests  *slots
	streams   *slots // of events; that a session has one at most is the SDK's to see
	bodies    *budget
	seats     *seats
	stateful  *mcp.Server
	legacy    http.Handler // up to 2025-11-25, with sessions
	stateless http.Handler // from 2026-07-28 on
}

func (s *Server) newFront(o HTTPOptions, keys *keyring) *front {
	f := &front{
		server: s, opts: o, keys: keys, rates: newRates(o.Rate), requests: newSlots(o.MaxRequests), streams: newSlots(o.MaxStreams),
		bodies: newBudget(o.MaxBodyBytes, max(o.MaxBodyBytes/4, MaxMessageBytes+1)),
		seats:  newSeats(o.MaxSessions, o.MaxOwnerSessions, o.UnusedTimeout), stateful: s.build(s.bySession),
	}
	f.stateful.AddReceivingMiddleware(seatSessions)
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
	over := f.requests.end()
	f.server.cancelScopes()
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-over: // every call has its answer, which needs its session
		case <-ctx.Done():
		}
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
	address := clientOf(r.RemoteAddr)
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

// bounded holds a client to its number of requests at once. Streams that belong to no call are bounded by themselves:
// they may be open for hours, and must not keep their client from asking for anything else.
func (f *front) bounded(w http.ResponseWriter, r *http.Request, client string) {
	if r.Method == http.MethodGet {
		f.stream(w, r, client)
		return
	}
	leave, ok := f.requests.enter(client)
	switch {
	case ok:
	case f.requests.isEnded():
		http.Error(w, "the server ends", http.StatusServiceUnavailable)
		return
	default:
		tooMany(w, "too many requests at once")
		return
	}
	defer leave()
	if r.Method == http.MethodPost {
		f.post(w, r, client)
		return
	}
	f.endSession(r)
	f.wire(r.Header.Get(headerVersion), false).ServeHTTP(w, r)
}

// stream answers a request for a session's stream of events.
func (f *front) stream(w http.ResponseWriter, r *http.Request, client string) {
	leave, ok := f.streams.enter(client)
	if !ok {
		tooMany(w, fmt.Sprintf("you have %d streams of events open, which is the limit; calls do not need one", f.opts.MaxStreams))
		return
	}
	defer leave()
	f.seats.use(r.Header.Get(headerSession))
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
