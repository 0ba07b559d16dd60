package mcpserver_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/mcpserver"
)

// TestDocumentation verifies that the pages about MCP have a valid policy, valid client configurations, and all codes.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	policies := blocks(t, "reference/guard-policy.md", "yaml")
	if len(policies) != 1 {
		t.Errorf("%d policies", len(policies))
	}
	for _, text := range policies {
		p := parsePolicy(t, text)
		if rule := p.Judge("cd x && git push"); rule != "no-push" {
			t.Errorf("the documented policy refuses by %q", rule)
		}
		want := mcpserver.DefaultPolicy().Limits
		if p.Limits.FileMB != want.FileMB || p.Limits.WorkspaceMB != want.WorkspaceMB || p.Limits.ExecTimeout != want.ExecTimeout {
			t.Errorf("the documented limits %+v are not the defaults %+v", p.Limits, want)
		}
	}
	configurations := blocks(t, "get-started/mcp.md", "json")
	if len(configurations) < 2 {
		t.Errorf("%d configurations", len(configurations))
	}
	for _, text := range configurations {
		if !json.Valid([]byte(text)) {
			t.Errorf("not JSON:\n%s", text)
		}
	}
	text := page(t, "reference/errors.md")
	for _, code := range toolspec.Codes() {
		if !strings.Contains(text, "`"+string(code)+"`") {
			t.Errorf("the code %s is not documented", code)
		}
	}
}

func page(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("..", "docs", filepath.FromSlash(name)))
	checktest.Must(t, err)
	return string(raw)
}

// blocks returns the code blocks of a page in a language.
func blocks(t *testing.T, name, language string) (list []string) {
	t.Helper()
	for _, b := range regexp.MustCompile("(?ms)^```"+language+"\n(.*?)^```$").FindAllStringSubmatch(page(t, name), -1) {
		list = append(list, b[1])
	}
	return list
}
