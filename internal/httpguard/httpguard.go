// Package httpguard contains the checks and limits of the project's HTTP servers for every request: host names,
// origins, bearer tokens, request rates, and clients that stop reading.
package httpguard

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/net/netutil"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

// Limits for connections and headers before a request is read.
const (
	headerTimeout  = 10 * time.Second
	keepAlive      = 2 * time.Minute
	maxHeaderBytes = 16 << 10
)

// Serve starts to serve h on l with limits for headers and for the number of connections, over TLS if cert is not nil.
// The context of a request has the values of ctx but does not end with it. If serving fails, the channel returns the
// error.
func Serve(
	ctx context.Context, l net.Listener, h http.Handler, connections int, cert *tls.Config, log *slog.Logger,
) (*http.Server, <-chan error) {
	srv := &http.Server{
		Handler: h, ReadHeaderTimeout: headerTimeout, IdleTimeout: keepAlive, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog:    slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		BaseContext: func(net.Listener) context.Context { return context.WithoutCancel(ctx) },
	}
	l = netutil.LimitListener(l, connections)
	if cert != nil {
		l = tls.NewListener(l, cert) // outermost, because net/http must detect TLS connections
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	return srv, failed
}

// Stop stops a server. Running requests get their answers. After the time limit, Stop closes all connections. It ignores
// the end of ctx.
func Stop(ctx context.Context, srv *http.Server, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), limit)
	defer cancel()
	err := srv.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = srv.Close() // the remaining clients are too slow
	}
	return err
}

// HostAllowed protects against DNS rebinding. A web page can make the page's host name resolve to the server, but it
// cannot use an IP address or a foreign host name. names are further host names of the server, with or without a port.
func HostAllowed(hostport string, names ...string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if host == "localhost" || net.ParseIP(host) != nil {
		return true
	}
	same := func(h string) bool { return strings.EqualFold(h, host) || strings.EqualFold(h, hostport) }
	return slices.ContainsFunc(names, same)
}

// OriginAllowed reports whether the request has an allowed origin: no web page, a page of the server's host, or a page
// of an origin trusted by p.
func OriginAllowed(p *http.CrossOriginProtection, r *http.Request) bool {
	changing := *r
	changing.Method = http.MethodPost // GET must be checked too, because it opens an event stream
	return p.Check(&changing) == nil
}

// IsLoopback reports whether only programs on this host can connect to the address.
func IsLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// PacedWriter closes the connection of a client that does not read its answer. Every part of a write has a new
// deadline, so a stream may be open for hours, but a stalled stream ends.
type PacedWriter struct {
	http.ResponseWriter
	Timeout time.Duration
}

// Extend sets a new deadline.
func (w *PacedWriter) Extend() {
	// Always supported by the server's connections.
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(w.Timeout))
}

// WriteHeader writes the status and headers of the answer.
func (w *PacedWriter) WriteHeader(status int) {
	w.Extend()
	w.ResponseWriter.WriteHeader(status)
}

// writePart is the maximum size of a write to the connection, because a slow client needs time for a large write.
const writePart = 256 << 10

// Write writes part of the answer.
func (w *PacedWriter) Write(p []byte) (n int, err error) {
	for part := range slices.Chunk(p, writePart) {
		w.Extend()
		var some int
		some, err = w.ResponseWriter.Write(part)
		if n += some; err != nil {
			break
		}
	}
	return n, err
}

// FlushError sends the written data.
func (w *PacedWriter) FlushError() error {
	w.Extend()
	return http.NewResponseController(w.ResponseWriter).Flush()
}

// Unwrap returns the underlying writer for http.ResponseController.
func (w *PacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// Token is a client's bearer token. Tokens with the same name belong to the same owner.
type Token struct {
	Name    string
	Secret  string
	Expires time.Time
}

const minSecretBytes = 16

// Local is the owner of requests without a token.
const Local = "local"

var ownerPattern = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)

// Tokens contains tokens by the digests of their secrets, to prevent information about similar tokens in the lookup
// time.
type Tokens map[[sha256.Size]byte]Token

// NewTokens returns the tokens of a list. It returns an error if a token is invalid or two owners have the same token.
func NewTokens(list []Token) (Tokens, error) {
	known := make(Tokens, len(list))
	for i, t := range list {
		digest := sha256.Sum256([]byte(t.Secret))
		other, taken := known[digest]
		switch {
		case !ownerPattern.MatchString(t.Name) || t.Name == Local:
			return nil, fmt.Errorf("token %d: invalid owner name %q", i+1, sanitize.Clip(t.Name))
		case len(t.Secret) < minSecretBytes:
			return nil, fmt.Errorf("token %d (%s): a token must have at least %d characters", i+1, t.Name, minSecretBytes)
		case taken:
			return nil, fmt.Errorf("token %d (%s): already used by %s; use a different token for each owner", i+1,
				t.Name, other.Name)
		}
		known[digest] = Token{Name: t.Name, Expires: t.Expires}
	}
	return known, nil
}

// Find returns the valid token with a secret, without the secret.
func (t Tokens) Find(secret string) (Token, bool) {
	token, ok := t[sha256.Sum256([]byte(secret))]
	return token, ok && (token.Expires.IsZero() || time.Now().Before(token.Expires))
}
