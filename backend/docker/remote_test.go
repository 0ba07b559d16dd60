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

// TestRemoteEngine verifies that the driver works over TCP with TLS, as for an engine on another host.
func TestRemoteEngine(t *testing.T) {
	t.Parallel()
	p := newProxy(t)
	secure := httptest.NewUnstartedServer(p.handler)
	secure.Config.ErrorLog = log.New(io.Discard, "", 0)
	secure.StartTLS()
	t.Cleanup(secure.Close)
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	host := "tcp://" + secure.Listener.Addr().String()
	b := newBackend(t, func(o *docker.Options) { o.Host, o.TLS = host, &tls.Config{RootCAs: roots} })
	info := backendtest.Create(t, b, newSpec())
	backendtest.Prints(t, backendtest.Dial(t, b, info.ID), "echo dial", "dial\n")
	if _, err := docker.New(t.Context(), &docker.Options{Host: host, TLS: &tls.Config{}}); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("unknown authority: %v, want ErrUnavailable", err)
	}
	if _, err := docker.New(t.Context(), &docker.Options{Host: host}); !errors.Is(err, backend.ErrInvalid) {
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
