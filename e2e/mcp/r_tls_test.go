package mcp_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestR3OriginOverTLS verifies R3 over TLS: the server's own pages use https, and plain requests fail.
func TestR3OriginOverTLS(t *testing.T) {
	t.Parallel()
	cert, key, cfg := certificate(t)
	s := startHTTP(t, "--tls-cert", cert, "--tls-key", key)
	for origin, want := range map[string]int{
		"": http.StatusOK, "https://" + s.addr: http.StatusOK, "https://evil.example": http.StatusForbidden,
	} {
		req := newRequest(t, t.Context(), http.MethodPost, "https://"+s.addr+"/mcp", initializeBody, map[string]string{"Origin": origin})
		res, err := oneConnection(cfg).Do(req)
		must(t, err)
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("origin %q: %d, want %d", origin, res.StatusCode, want)
		}
	}
	if line := s.raw("GET /healthz HTTP/1.1\r\nHost: " + s.addr + "\r\n\r\n"); !strings.Contains(line, " 400 ") {
		t.Errorf("plain: %q", line)
	}
}

// certificate returns the files of a certificate for the loopback address, and the configuration of a trusting client.
func certificate(t *testing.T) (certFile, keyFile string, trusting *tls.Config) {
	t.Helper()
	owner := httptest.NewTLSServer(nil)
	defer owner.Close()
	pair := owner.TLS.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	must(t, err)
	dir := t.TempDir()
	write := func(name, kind string, data []byte) string {
		path := filepath.Join(dir, name)
		must(t, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data}), 0o600))
		return path
	}
	pool := x509.NewCertPool()
	pool.AddCert(owner.Certificate())
	return write("cert.pem", "CERTIFICATE", pair.Certificate[0]), write("key.pem", "PRIVATE KEY", key), &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
}
