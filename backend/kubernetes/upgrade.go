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

// pingEvery keeps what lies between from ending a stream on which nothing is said; client-go's own value.
const pingEvery = 5 * time.Second

// executor returns what runs a program in a pod at an address: by SPDY, which is twice as fast in bulk, or by a
// WebSocket where SPDY does not come through.
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

// upgrade makes connections for SPDY as client-go does, but for two things: the end of the request's context ends one
// also while the server says nothing, as one does whose node is frozen; and a refusal keeps its type.
type upgrade struct {
	*spdy.SpdyRoundTripper
	conn net.Conn // that of RoundTrip
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

// RoundTrip sends a request to upgrade, and returns the answer.
func (u *upgrade) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	req.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	req.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	conn, err := u.Dial(req)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(req.Context(), func() { _ = conn.Close() }) // whoever uses it finds out
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		_ = conn.Close() // err says why
		return nil, err
	}
	u.conn = conn
	return resp, nil
}

// NewConnection returns the connection that the server's answer upgrades. An UpgradeFailureError says that it came from
// something between that lets no SPDY pass; the API server and the node answer in other ways.
func (u *upgrade) NewConnection(resp *http.Response) (httpstream.Connection, error) {
	if resp.StatusCode == http.StatusSwitchingProtocols && strings.EqualFold(resp.Header.Get(httpstream.HeaderUpgrade), spdy.HeaderSpdy31) {
		return spdy.NewClientConnectionWithPings(u.conn, pingEvery)
	}
	defer u.conn.Close()                                     //nolint:errcheck // there is nothing on it
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // what came of it
	var status metav1.Status
	server := json.Unmarshal(text, &status) == nil && status.Kind == "Status"
	err := errors.New(cmp.Or(status.Message, strings.TrimSpace(string(text)), resp.Status))
	switch code := resp.StatusCode; {
	case server && (code == http.StatusUnauthorized || code == http.StatusForbidden):
		return nil, &apierrors.StatusError{ErrStatus: status}
	case server && code != http.StatusBadRequest, // which it is without the headers that ask for the upgrade
		code == http.StatusNotFound, code == http.StatusTooManyRequests, code == http.StatusInternalServerError: // the node's
		return nil, fmt.Errorf("cannot run the program: %w", err)
	}
	return nil, &httpstream.UpgradeFailureError{Cause: err}
}

// bounded is a transport that connects within attachTimeout, also where the server says nothing.
type bounded struct{ next http.RoundTripper }

func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithTimeout(req.Context(), attachTimeout)
	defer cancel()
	return b.next.RoundTrip(req.WithContext(ctx))
}
