package engines

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/docker/docker/client"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/containerd"
	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/hint"
)

// TestID verifies that an engine has the same id with an explicit address and with the default address.
func TestID(t *testing.T) {
	t.Parallel()
	id := func(engine string, vars map[string]string) string {
		vars["DOCKER_CONFIG"] = t.TempDir() // ignore the context selected by the current user
		id, err := Set{Env: environ.Of(vars)}.ID(t.Context(), engine)
		checktest.Must(t, err)
		return id
	}
	for _, tc := range []struct {
		engine string
		usual  map[string]string
		other  map[string]string
	}{
		{Docker, map[string]string{"DOCKER_HOST": client.DefaultDockerHost}, map[string]string{"DOCKER_HOST": "unix:///run/other.sock"}},
		{Containerd, map[string]string{"CONTAINERD_NAMESPACE": containerd.DefaultNamespace}, map[string]string{"CONTAINERD_NAMESPACE": "other"}},
	} {
		plain := id(tc.engine, map[string]string{})
		if got := id(tc.engine, tc.usual); got != plain {
			t.Errorf("%s: %s by its default address, %s without", tc.engine, got, plain)
		}
		if got := id(tc.engine, tc.other); got == plain {
			t.Errorf("%s: %s for another engine, too", tc.engine, got)
		}
	}
}

// TestEnviron verifies that another process finds the same engine from any directory, and that the variables contain no
// secrets.
func TestEnviron(t *testing.T) {
	t.Parallel()
	config := t.TempDir()
	checktest.Must(t, os.WriteFile(filepath.Join(config, "config.json"), []byte(`{"currentContext": "far"}`), 0o600))
	here, err := filepath.Abs("certs")
	checktest.Must(t, err)
	for name, test := range map[string]struct {
		vars      map[string]string
		have, not []string
	}{
		"context": {
			map[string]string{"DOCKER_CONFIG": config, "GEMINI_API_KEY": "secret", "WORKCELL_MCP_TOKEN": "secret"},
			[]string{"DOCKER_CONFIG=" + config, "DOCKER_CONTEXT=far"},
			[]string{"GEMINI_API_KEY=secret", "WORKCELL_MCP_TOKEN=secret"},
		},
		"credential program": {
			map[string]string{"AWS_PROFILE": "team", "AWS_CONFIG_FILE": "certs", "AWS_SECRET_ACCESS_KEY": "secret"},
			[]string{"AWS_PROFILE=team", "AWS_CONFIG_FILE=" + here}, []string{"AWS_SECRET_ACCESS_KEY=secret"},
		},
		"no context": {map[string]string{"DOCKER_CONFIG": t.TempDir()}, []string{"DOCKER_CONTEXT=default"}, nil},
		"address": {
			map[string]string{"DOCKER_HOST": "tcp://far:2376", "DOCKER_CERT_PATH": "certs", "DOCKER_CONTEXT": "near"},
			[]string{"DOCKER_HOST=tcp://far:2376", "DOCKER_CERT_PATH=" + here}, []string{"DOCKER_CONTEXT=near"},
		},
	} {
		environ, err := Set{Env: environ.Of(test.vars)}.Environ()
		checktest.Must(t, err)
		for _, v := range test.have {
			if !slices.Contains(environ, v) {
				t.Errorf("%s: %s is not in %v", name, v, environ)
			}
		}
		for _, v := range test.not {
			if slices.Contains(environ, v) {
				t.Errorf("%s: %s is in it", name, v)
			}
		}
	}
}

// TestLeftOut verifies that an engine excluded from the build cannot be opened, and that the error contains the reason.
func TestLeftOut(t *testing.T) {
	t.Parallel()
	e := leftOut(Docker)
	b, err := e.Open(t.Context())
	h := hint.Of(err)
	if b != nil || !errors.Is(err, backend.ErrUnavailable) || h == nil || h.Kind != hint.Unavailable {
		t.Fatalf("Open = %v, %v", b, err)
	}
	if !strings.Contains(err.Error(), "no_docker") || e.absent(t.Context()) == "" || e.Fix(err) == "" {
		t.Errorf("error %q, absent %q, fix %q", err, e.absent(t.Context()), e.Fix(err))
	}
}

// TestUnsupportedHost verifies that opening an engine on an unsupported host returns the remedy of the engine.
func TestUnsupportedHost(t *testing.T) {
	t.Parallel()
	open := func(context.Context) (backend.SandboxBackend, error) { return nil, backend.ErrUnsupported }
	_, err := Engine{open: open, Fix: func(error) string { return "use Linux" }}.Open(t.Context())
	if h := hint.Of(err); h == nil || h.Kind != hint.Unavailable || !strings.HasPrefix(h.Hint, "use Linux\n") {
		t.Errorf("Open = %v, hint %v", err, h)
	}
}
