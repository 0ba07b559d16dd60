package kit_test

import (
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend/internal/kit"
)

func TestScrub(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"Error response from daemon: pull access denied for acme/app":                                               "pull access denied for acme/app",
		"Get https://registry.example.com/v2/: x509: unknown":                                                       "Get https://registry.example.com/v2/: x509: unknown",
		"write /var/lib/docker/overlay2/abc/diff: no space left":                                                    "write <path>: no space left",
		"request returned 500 for API route and version http://%2Fvar%2Frun%2Fdocker.sock/v1.41/x?path=%2Fy, check": "request returned 500 for API route and version <engine>, check",
		"dial unix:///var/run/docker.sock: connect: refused":                                                        "dial <engine>: connect: refused",
		"open \"/root/.docker/config.json\": permission denied":                                                     "open \"<path>\": permission denied",
		"Get \"https://user:p4ss@registry.example.com/v2/\": refused":                                               "Get \"https://registry.example.com/v2/\": refused",
		"manifest for localhost:5000/a/b:latest not found\nsecond line":                                             "manifest for localhost:5000/a/b:latest not found second line",
	} {
		if got := kit.Scrub(in); got != want {
			t.Errorf("scrub(%q) = %q, want %q", in, got, want)
		}
	}
	if got := kit.Scrub(strings.Repeat("é", 1000)); len(got) > 310 {
		t.Errorf("%d bytes left", len(got))
	}
}
