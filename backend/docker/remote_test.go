package docker_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/docker"
)

// TestRemoteEngine reaches the engine over TCP, with and without TLS, as one on another machine.
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
			if got := backendtest.Sh(t, backendtest.Dial(t, b, info.ID), "echo dial"); got != "dial\n" {
				t.Errorf("%q", got)
			}
		})
	}
	if _, err := docker.New(t.Context(), &docker.Options{Host: host(secure), TLS: &tls.Config{}}); !errors.Is(err, backend.ErrUnavailable) {
		t.Errorf("unknown authority: %v, want ErrUnavailable", err)
	}
	if _, err := docker.New(t.Context(), &docker.Options{Host: host(secure)}); !errors.Is(err, backend.ErrInvalid) {
		t.Errorf("no TLS: %v, want ErrInvalid", err)
	}
}

// TestRemoteDial: streams of an engine on another machine, which go through bridges that it starts.
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

// TestSpans checks the tree, and that nothing of the user's but the image and the run is in it.
func TestSpans(t *testing.T) {
	t.Parallel()
	rec := tracetest.NewSpanRecorder()
	tp := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(rec))
	b := newBackend(t, func(o *docker.Options) { o.TracerProvider = tp })
	spec := newSpec()
	spec.Env, spec.Labels = []string{"CANARY=canary-env"}, map[string]string{"x": "canary-label"}
	ctx, root := tp.Tracer("test").Start(t.Context(), "root")
	info, err := b.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	rw, err := b.Dial(ctx, info.ID)
	if err != nil {
		t.Fatal(err)
	}
	if err := rw.Close(); err != nil {
		t.Error(err)
	}
	if err := b.Remove(ctx, info.ID, backend.RemoveOptions{Volumes: true}); err != nil {
		t.Error(err)
	}
	missing := newSpec()
	missing.Image = "workcelltest/none"
	if _, err := b.Create(ctx, missing); err == nil {
		t.Error("an image that is not there was found")
	}
	address := newSpec()
	address.Image = "https://joe:canary-password@registry.example.com/app"
	if _, err := b.Create(ctx, address); err == nil || strings.Contains(err.Error(), "canary") {
		t.Errorf("an address instead of an image: %v", err)
	}
	root.End()
	if err := tp.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	parents := map[string]string{}
	byID := map[string]string{}
	for _, s := range rec.Ended() {
		byID[s.SpanContext().SpanID().String()] = s.Name()
	}
	for _, s := range rec.Ended() {
		if s.Name() == "root" {
			continue
		}
		parents[s.Name()] = byID[s.Parent().SpanID().String()]
		for _, a := range s.Attributes() {
			if a.Value.Type() == attribute.STRING && strings.Contains(a.Value.AsString(), "canary") {
				t.Errorf("%s: %s carries %s", s.Name(), a.Key, a.Value.AsString())
			}
		}
	}
	for name, parent := range map[string]string{
		"docker.Create": "root", "docker.Start": "docker.Create", "docker.Dial": "root", "docker.Remove": "root",
	} {
		if got := parents[name]; got != parent {
			t.Errorf("%s is below %q, want %q", name, got, parent)
		}
		delete(parents, name)
	}
	if len(parents) != 0 {
		t.Errorf("other spans: %v", parents)
	}
}
