package docker_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/docker"
)

// TestRemoteEngine verifies that the driver works over TCP, with and without TLS, as for an engine on another host.
func TestRemoteEngine(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	plain, secure := httptest.NewServer(p.handler), httptest.NewUnstartedServer(p.handler)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(plain.Close)
	t.Cleanup(secure.Close)
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	host := func(s *httptest.Server) string { return "tcp://" + s.Listener.Addr().String() }

	for name, o := range map[string]docker.Options{
		"plain": {Host: host(plain)},
		"TLS":   {Host: host(secure), TLS: &tls.Config{RootCAs: roots}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, func(to *docker.Options) { *to = o })
			info := backendtest.Create(t, b, newSpec())
			backendtest.Prints(t, backendtest.Dial(t, b, info.ID), "echo dial", "dial\n")
		})
	}
	if _, err := docker.New(t.Context(), &docker.Options{Host: host(secure), TLS: &tls.Config{}}); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("unknown authority: %v, want ErrUnavailable", err)
	}
	if _, err := docker.New(t.Context(), &docker.Options{Host: host(secure)}); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("no TLS: %v, want ErrInvalid", err)
	}
}

// TestRemoteDial verifies the streams of an engine on another host, which use bridges started by the engine.
func TestRemoteDial(t *testing.T) {
	t.Parallel()
	engine := httptest.NewServer(newProxy(t).handler)
	t.Cleanup(engine.Close)
	h := harness(t)
	h.New = func(t testing.TB) backend.SandboxBackend {
		return newBackend(t, func(o *docker.Options) { o.Host = "tcp://" + engine.Listener.Addr().String() })
	}
	backendtest.RunGroups(t, h, "dial", "loss", "crash")
}
