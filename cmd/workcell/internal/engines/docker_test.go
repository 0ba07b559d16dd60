//go:build !no_docker

package engines

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/environ"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/hint"
)

func TestDockerOptions(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sum := sha256.Sum256([]byte("colima"))
	meta := filepath.Join(dir, "contexts", "meta", hex.EncodeToString(sum[:]))
	checktest.Must(t, os.MkdirAll(meta, 0o700))
	files := map[string]string{
		filepath.Join(meta, "meta.json"):  `{"Name":"colima","Endpoints":{"docker":{"Host":"unix:///colima.sock"}}}`,
		filepath.Join(dir, "config.json"): `{"auths":{},"currentContext":"colima"}`,
	}
	for path, content := range files {
		checktest.Must(t, os.WriteFile(path, []byte(content), 0o600))
	}
	for _, tc := range []struct {
		name string
		vars map[string]string
		host string
	}{
		{"host", map[string]string{"DOCKER_HOST": "tcp://h:1"}, "tcp://h:1"},
		{"host before context", map[string]string{"DOCKER_HOST": "tcp://h:1", "DOCKER_CONTEXT": "x"}, "tcp://h:1"},
		{"chosen context", nil, "unix:///colima.sock"},
		{"named context", map[string]string{"DOCKER_CONTEXT": "colima"}, "unix:///colima.sock"},
		{"default context", map[string]string{"DOCKER_CONTEXT": "default"}, ""},
	} {
		vars := map[string]string{"DOCKER_CONFIG": dir}
		for k, v := range tc.vars {
			vars[k] = v
		}
		opts, err := Set{Env: environ.Of(vars)}.dockerOptions()
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if opts.Host != tc.host || opts.TLS != nil || opts.ConfigDir != dir {
			t.Errorf("%s: %q, TLS %v, config %q, want %q", tc.name, opts.Host, opts.TLS, opts.ConfigDir, tc.host)
		}
	}
	_, err := Set{Env: environ.Of(map[string]string{"DOCKER_CONFIG": dir, "DOCKER_CONTEXT": "gone"})}.dockerOptions()
	wantUnavailable(t, err, `cannot read the Docker context "gone"`)
	_, err = Set{Env: environ.Of(map[string]string{
		"DOCKER_CONFIG": dir, "DOCKER_HOST": "tcp://h:1", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": dir,
	})}.dockerOptions()
	wantUnavailable(t, err, "engine certificates")
}

// TestDockerContextTLS verifies that a context of the docker command has the same TLS settings as there.
func TestDockerContextTLS(t *testing.T) {
	t.Parallel()
	srv := httptest.NewTLSServer(nil)
	t.Cleanup(srv.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	for _, tc := range []struct {
		endpoint     string
		ca           []byte
		tls, skipped bool
		broken       bool
	}{
		{endpoint: `"Host":"tcp://h:1"`},
		{endpoint: `"Host":"tcp://h:1"`, ca: ca, tls: true},
		{endpoint: `"Host":"tcp://h:1","SkipTLSVerify":true`, tls: true, skipped: true},
		{endpoint: `"Host":"tcp://h:1"`, ca: []byte("x"), broken: true},
		{endpoint: `"Host":"unix:///s","SkipTLSVerify":true`, ca: ca},
	} {
		dir, sum := t.TempDir(), sha256.Sum256([]byte("far"))
		id := hex.EncodeToString(sum[:])
		files := map[string]string{"meta/" + id + "/meta.json": `{"Endpoints":{"docker":{` + tc.endpoint + `}}}`}
		if tc.ca != nil {
			files["tls/"+id+"/docker/ca.pem"] = string(tc.ca)
		}
		for name, content := range files {
			path := filepath.Join(dir, "contexts", name)
			checktest.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
			checktest.Must(t, os.WriteFile(path, []byte(content), 0o600))
		}
		vars := map[string]string{"DOCKER_CONFIG": dir, "DOCKER_CONTEXT": "far"}
		opts, err := Set{Env: environ.Of(vars)}.dockerOptions()
		switch {
		case tc.broken:
			wantUnavailable(t, err, "engine certificates")
		case err != nil || (opts.TLS != nil) != tc.tls:
			t.Errorf("%s: %v, TLS %v", tc.endpoint, err, opts.TLS)
		case tc.tls && (opts.TLS.InsecureSkipVerify != tc.skipped || (opts.TLS.RootCAs != nil) != (tc.ca != nil)):
			t.Errorf("%s: %+v", tc.endpoint, opts.TLS)
		}
	}
}

func wantUnavailable(t *testing.T, err error, text string) {
	t.Helper()
	if h := hint.Of(err); h == nil || h.Kind != hint.Unavailable || !strings.Contains(err.Error(), text) {
		t.Errorf("error = %v (%+v), want %q", err, h, text)
	}
}
