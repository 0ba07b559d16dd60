//go:build !no_ui

package admincmd

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestLinkOfServer verifies that a running server, with or without TLS, is found, and an answer of another program on
// its address is neither printed nor opened.
func TestLinkOfServer(t *testing.T) {
	t.Parallel()
	const pages = "https://workcell.localhost:7373"
	for answer, valid := range map[string]bool{
		pages + "/login?t=ABC234": true, "": false, pages + "/login?t=": false, pages + "/login?t=A\x1b[2J": false,
		"https://attacker.example/login?t=ABC234": false, "file:///etc/passwd": false,
	} {
		for _, start := range []func(http.Handler) *httptest.Server{httptest.NewServer, httptest.NewTLSServer} {
			web := start(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }))
			t.Cleanup(web.Close)
			raw, err := json.Marshal(running{URL: web.URL, Pages: pages, Key: "k"})
			checktest.Must(t, err)
			file := filepath.Join(t.TempDir(), uiFile)
			checktest.Must(t, os.WriteFile(file, raw, 0o600))
			if got := linkOf(t.Context(), file); (got == answer && got != "") != valid {
				t.Errorf("%q from %s: %q", answer, web.URL, got)
			}
		}
	}
}
