package kubernetes_test

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/kubernetes"
	"github.com/workcell-dev/workcell/internal/clustertest"
)

// front returns the configuration of an HTTP proxy in front of the API server. It forwards requests for which take
// returns false.
func front(t *testing.T, take func(http.ResponseWriter, *http.Request) bool) *rest.Config {
	t.Helper()
	config, err := clustertest.Config()
	must(t, err)
	server, err := url.Parse(config.Host)
	must(t, err)
	tls, err := rest.TLSConfigFor(config)
	must(t, err)
	onward := httputil.NewSingleHostReverseProxy(server)
	transport := &http.Transport{TLSClientConfig: tls, Protocols: new(http.Protocols)}
	transport.Protocols.SetHTTP1(true) // other protocols have no upgrades
	onward.Transport, onward.FlushInterval = transport, -1
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !take(w, r) {
			onward.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		transport.CloseIdleConnections()
	})
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	return &rest.Config{Host: s.URL, TLSClientConfig: rest.TLSClientConfig{CAData: cert}}
}

// TestWebSocket verifies that streams work through a proxy without support for SPDY.
func TestWebSocket(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"refuses": func(w http.ResponseWriter, _ *http.Request) bool {
			http.Error(w, "<html>no such upgrade</html>", http.StatusForbidden)
			return true
		},
		"drops the header": func(_ http.ResponseWriter, r *http.Request) bool {
			r.Header.Del("Upgrade")
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var refused atomic.Int64
			config := front(t, func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.HasPrefix(r.Header.Get("Upgrade"), "SPDY/") {
					return false
				}
				refused.Add(1)
				return refuse(w, r)
			})
			b := newBackend(t, func(o *kubernetes.Options) { o.Config = config })
			conn := backendtest.Dial(t, b, backendtest.Create(t, b, newSpec()).ID)
			if got := backendtest.Sh(t, conn, "echo through"); got != "through\n" || refused.Load() == 0 {
				t.Errorf("%q; %d refused", got, refused.Load())
			}
		})
	}
}

// TestSilentNode verifies that calls return when their context ends or after a timeout if the API server works but does
// not respond to an exec, as for a frozen node.
func TestSilentNode(t *testing.T) {
	t.Parallel()
	var silent atomic.Bool
	asked, over := make(chan struct{}, 1000), make(chan struct{})
	config := front(t, func(_ http.ResponseWriter, r *http.Request) bool {
		if !silent.Load() || !strings.HasSuffix(r.URL.Path, "/exec") {
			return false
		}
		asked <- struct{}{}
		select {
		case <-r.Context().Done():
		case <-over:
		}
		return true
	})
	t.Cleanup(func() { close(over) })
	b := newBackend(t, func(o *kubernetes.Options) { o.Config, o.CallTimeout = config, 10*time.Second })
	info := backendtest.Create(t, b, newSpec())
	backendtest.Dial(t, b, info.ID) // the stream opened by Create
	silent.Store(true)
	ends := func(name string, want error, call func() error) {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- call() }()
		select {
		case err := <-done:
			backendtest.Fails(t, name, err, want)
		case <-time.After(patience):
			t.Fatalf("%s has no end", name)
		}
	}
	ends("Dial", backend.ErrUnavailable, func() error { _, err := b.Dial(t.Context(), info.ID); return err })
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for len(asked) > 0 {
		<-asked
	}
	ends("Create", context.Canceled, func() error {
		go func() {
			<-asked
			cancel()
		}()
		return second(b.Create(ctx, newSpec()))
	})
	silent.Store(false)
	backendtest.Dial(t, b, info.ID)
}

// TestIdentity verifies that a namespace has the same identity under every address of the cluster, and that other
// namespaces have other identities.
func TestIdentity(t *testing.T) {
	t.Parallel()
	identity := func(adjust func(*kubernetes.Options)) string {
		t.Helper()
		id, err := newBackend(t, adjust).Identity(t.Context())
		if err != nil || id == "" {
			t.Fatalf("%q, %v", id, err)
		}
		return id
	}
	plain := identity(nil)
	through := front(t, func(http.ResponseWriter, *http.Request) bool { return false })
	if got := identity(func(o *kubernetes.Options) { o.Config = through }); got != plain {
		t.Errorf("%s by another address, %s", got, plain)
	}
	other := ownNamespace(t)
	if got := identity(func(o *kubernetes.Options) { o.Namespace = other }); got == plain {
		t.Errorf("%s for another namespace, too", got)
	}
	_, err := newBackend(t, func(o *kubernetes.Options) { o.Namespace = other + "-none" }).Identity(t.Context())
	backendtest.Fails(t, "a missing namespace", err, backend.ErrNotFound)
}
