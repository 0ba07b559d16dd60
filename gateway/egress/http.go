package egress

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/workcell-dev/workcell/internal/httpconn"
)

const (
	headerTime = 30 * time.Second // for the header of a request
	maxHeader  = 64 << 10         // maximum size of a response header in bytes
)

// serveHTTP handles the requests on a connection. They are proxy requests or, if fixed is not nil, requests to this
// host.
func (d *door) serveHTTP(ctx context.Context, c net.Conn, fixed *target) {
	tunnel := cmp.Or(fixed, &target{}).host
	httpconn.Serve(ctx, c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case d.web.Claims(r, tunnel):
			d.web.ServeHTTP(w, r)
		case r.Method == http.MethodConnect && fixed == nil:
			d.serveConnect(ctx, w, r)
		default:
			d.serveRequest(w, r, fixed)
		}
	}), headerTime)
}

// serveConnect turns the connection into a tunnel.
func (d *door) serveConnect(ctx context.Context, w http.ResponseWriter, r *http.Request) {
	host, port, err := net.SplitHostPort(r.RequestURI)
	to, ok := newTarget(host, port)
	if err != nil || !ok {
		badRequest(w, "CONNECT requires HOST:PORT")
		return
	}
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		http.Error(w, "workcell: CONNECT requires HTTP/1.1", http.StatusHTTPVersionNotSupported)
		return
	}
	defer conn.Close()                //nolint:errcheck // it has ended
	_ = conn.SetDeadline(time.Time{}) // remove the deadline of the request header
	d.tunnel(ctx, &client{conn, rw.Reader}, to, func(refused *refusal) error {
		if refused != nil {
			return refused.write(conn)
		}
		_, err := io.WriteString(conn, "HTTP/1.1 200 Connection established\r\n\r\n")
		return err
	})
}

// badRequest answers an invalid proxy request and closes the connection, because further requests would be invalid too.
func badRequest(w http.ResponseWriter, wrong string) {
	w.Header().Set("Connection", "close")
	http.Error(w, "workcell: "+wrong, http.StatusBadRequest)
}

// write answers a refused CONNECT request.
func (r *refusal) write(w io.Writer) error {
	body := r.body()
	res := &http.Response{
		StatusCode: r.status, ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Close: true,
		Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}
	r.header(res.Header)
	return res.Write(w)
}

// header describes a refusal in header fields for programs.
func (r *refusal) header(h http.Header) {
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Proxy-Status", fmt.Sprintf("workcell; error=%s; details=%q", r.kind, r.rule))
}

// targetOf returns the destination of a proxy request or, if fixed is not nil, of a request to the tunnel's host.
func targetOf(r *http.Request, fixed *target) (to target, wrong string) {
	host, scheme := r.URL.Host, r.URL.Scheme
	if fixed != nil {
		host, scheme = r.Host, "http"
	}
	switch {
	case r.Method == http.MethodConnect || host == "" || r.URL.Opaque != "":
		return to, "this is a proxy; send a proxy request"
	case scheme != "http":
		return to, "for https, send CONNECT"
	case fixed != nil && r.URL.Host != "":
		return to, "this is a tunnel, not a proxy"
	}
	u := url.URL{Host: host}
	to, ok := newTarget(u.Hostname(), cmp.Or(u.Port(), "80"))
	if !ok {
		return to, "invalid host"
	}
	return to, ""
}

// serveRequest forwards a request over a new connection.
func (d *door) serveRequest(w http.ResponseWriter, r *http.Request, fixed *target) {
	to, wrong := targetOf(r, fixed)
	if wrong != "" {
		badRequest(w, wrong)
		return
	}
	a := d.begin(r.Context(), to)
	m, refused := d.match(r.Context(), to)
	var host *metered
	switch {
	case fixed != nil && to != *fixed:
		refused = refuse(kindDenied, "http: Host", "Requests must name the host of the tunnel.",
			"the tunnel leads to %s, not to %s", fixed, to)
	case refused != nil:
	case to.port == 443 && !m.Named:
		refused = withoutTLS(to)
	default:
		host, refused = a.open(r.Context(), m)
	}
	if refused != nil {
		a.note(refused)
		refused.header(w.Header())
		if refused.status == http.StatusServiceUnavailable {
			w.Header().Set("Connection", "close")
		}
		w.WriteHeader(refused.status)
		_, _ = io.WriteString(w, refused.body()) // the client may have closed the connection
		a.end(nil, refused)
		return
	}
	// Remains if forward panics because the response broke off; the panic makes the server break off the response.
	failed := errBroken
	defer func() {
		_ = host.Close() // the connection is done
		if host.spent.Load() {
			failed = a.spent()
		}
		a.end(host, failed)
	}()
	failed = forward(w, r, to, host)
}

// errBroken means a response ended prematurely.
var errBroken error = &refusal{http.StatusBadGateway, kindDown, "", "the response was interrupted", ""}

// forward forwards a request over a connection.
func forward(w http.ResponseWriter, r *http.Request, to target, host *metered) (failed error) {
	dial := func(context.Context, string, string) (net.Conn, error) { return host, nil }
	proxy := &httputil.ReverseProxy{
		Rewrite: func(pr *httputil.ProxyRequest) {
			pr.Out.URL.Scheme, pr.Out.URL.Host, pr.Out.URL.User = "http", to.String(), nil
			pr.Out.URL.RawQuery = pr.In.URL.RawQuery // ReverseProxy drops parts that Go cannot parse
			pr.Out.Host = strings.TrimSuffix(to.String(), ":80")
			pr.Out.Header.Del("Upgrade") // data after an upgrade could not be checked
			pr.Out.Header.Del("Connection")
		},
		Transport: &http.Transport{
			DialContext: dial, DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: maxHeader,
		},
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // logs only closed connections
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) {
			failed = &refusal{http.StatusBadGateway, kindDown, "", fmt.Sprintf("invalid response from %s", to), ""}
			http.Error(w, "workcell: "+failed.Error(), http.StatusBadGateway)
		},
	}
	proxy.ServeHTTP(w, r)
	return failed
}
