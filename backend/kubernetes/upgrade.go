package kubernetes

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"      //nolint:staticcheck // client-go takes the types of this one
	"k8s.io/apimachinery/pkg/util/httpstream/spdy" //nolint:staticcheck // as above
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// pingEvery is the interval of pings. They prevent proxies from closing an idle stream. The value is client-go's
// default.
const pingEvery = 5 * time.Second

// executor returns an executor for a program in a pod. It uses SPDY, which is twice as fast for large transfers. If a
// proxy does not support SPDY, it uses a WebSocket.
func (d *driver) executor(url *url.URL) (remotecommand.Executor, error) {
	up, err := newUpgrade(d.config, d.handshakes)
	if err != nil {
		return nil, err
	}
	wrapped, err := rest.HTTPWrappersForConfig(d.config, up)
	if err != nil {
		return nil, err
	}
	fast, err := remotecommand.NewSPDYExecutorForTransports(wrapped, up, http.MethodPost, url)
	if err != nil {
		return nil, err
	}
	config := rest.CopyConfig(d.config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return bounded{next} })
	other, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, url.String())
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(fast, other, httpstream.IsUpgradeFailure)
}

// upgrade creates SPDY connections like client-go, with two differences. If the request's context ends, the connection
// is closed even while the server does not respond, for example because of a frozen node. A rejection keeps the error
// type.
type upgrade struct {
	*spdy.SpdyRoundTripper
	conn net.Conn // the connection of RoundTrip
}

func newUpgrade(config *rest.Config, handshakes tls.ClientSessionCache) (*upgrade, error) {
	settings, err := rest.TLSConfigFor(config)
	if err != nil {
		return nil, err
	}
	if settings != nil {
		settings.ClientSessionCache = handshakes
	}
	proxy := config.Proxy
	if proxy == nil {
		proxy = http.ProxyFromEnvironment
	}
	dialer, err := spdy.NewRoundTripperWithConfig(spdy.RoundTripperConfig{TLS: settings, Proxier: proxy})
	return &upgrade{SpdyRoundTripper: dialer}, err
}

// RoundTrip sends an upgrade request and returns the response.
func (u *upgrade) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	req.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	conn, err := u.dial(req)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(req.Context(), func() { _ = conn.Close() }) // the user of the connection gets the error
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		_ = conn.Close() // err contains the reason
		return nil, err
	}
	u.conn = conn
	return resp, nil
}

// dial connects to the server. It returns if the request's context ends, because Dial waits for a silent proxy.
func (u *upgrade) dial(req *http.Request) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	ctx, dialed := req.Context(), make(chan result)
	go func() { // ends when the proxy answers or closes the connection
		conn, err := u.Dial(req)
		select {
		case dialed <- result{conn, err}:
		case <-ctx.Done():
			if err == nil {
				_ = conn.Close() // it is unused
			}
		}
	}()
	select {
	case r := <-dialed:
		return r.conn, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// NewConnection returns the upgraded connection. If the response came from a proxy without support for SPDY, it returns
// an UpgradeFailureError. Responses of the API server and the node have another form.
func (u *upgrade) NewConnection(resp *http.Response) (httpstream.Connection, error) {
	protocol := resp.Header.Get(httpstream.HeaderUpgrade)
	if resp.StatusCode == http.StatusSwitchingProtocols && strings.EqualFold(protocol, spdy.HeaderSpdy31) {
		return spdy.NewClientConnectionWithPings(u.conn, pingEvery)
	}
	defer u.conn.Close()                                     //nolint:errcheck // it contains no data
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // the text of the response
	var status metav1.Status
	server := json.Unmarshal(text, &status) == nil && status.Kind == "Status"
	err := errors.New(cmp.Or(status.Message, strings.TrimSpace(string(text)), resp.Status))
	code := resp.StatusCode
	if server && code == http.StatusBadRequest && strings.HasPrefix(status.Message, "admission webhook ") {
		code, status.Code, status.Reason = http.StatusForbidden, http.StatusForbidden, metav1.StatusReasonForbidden
	}
	switch {
	case server && (code == http.StatusUnauthorized || code == http.StatusForbidden ||
		code == http.StatusUnprocessableEntity): // the last is from an admission policy
		return nil, &apierrors.StatusError{ErrStatus: status}
	case server && code != http.StatusBadRequest, // the status without the upgrade headers
		code == http.StatusNotFound, code == http.StatusTooManyRequests, // of the node
		code == http.StatusInternalServerError:
		return nil, fmt.Errorf("cannot run the program: %w", err)
	}
	return nil, &httpstream.UpgradeFailureError{Cause: err}
}

// rejects reports whether the server rejects an exec because of a missing permission or a policy.
func rejects(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }

// bounded is a transport and connects within attachTimeout, even if the server does not respond.
type bounded struct{ next http.RoundTripper }

func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(req.Context(), attachTimeout)
	defer cancel()
	return b.next.RoundTrip(req.WithContext(ctx))
}
