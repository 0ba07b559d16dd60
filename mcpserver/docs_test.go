package mcpserver_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/mcpserver"
)

// TestDocumentation verifies that the examples of docs/mcp.md are valid and that the identifiers in it exist.
func TestDocumentation(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(filepath.Join("..", "docs", "mcp.md"))
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	blocks := regexp.MustCompile("(?s)```(json|yaml)\n(.*?)```").FindAllStringSubmatch(text, -1)
	policies := 0
	for _, b := range blocks {
		if b[1] == "yaml" {
			p := parsePolicy(t, b[2])
			policies++
			if rule := p.Judge("cd x && git push"); rule != "no-push" {
				t.Errorf("the documented policy refuses by %q", rule)
			}
			want := mcpserver.DefaultPolicy().Limits
			if p.Limits.FileMB != want.FileMB || p.Limits.WorkspaceMB != want.WorkspaceMB || p.Limits.ExecTimeout != want.ExecTimeout {
				t.Errorf("the documented limits %+v are not the defaults %+v", p.Limits, want)
			}
			continue
		}
		if !json.Valid([]byte(b[2])) {
			t.Errorf("not JSON:\n%s", b[2])
		}
	}
	if policies != 1 || len(blocks) < 7 {
		t.Errorf("%d blocks, %d policies", len(blocks), policies)
	}
	for _, code := range toolspec.Codes() {
		if !strings.Contains(text, "`"+string(code)+"`") {
			t.Errorf("the code %s is not documented", code)
		}
	}
	tests := testNames(t)
	for _, m := range regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(text, -1) {
		if !slices.Contains(tests, m[1]) {
			t.Errorf("there is no %s in e2e/mcp", m[1])
		}
	}
}

func testNames(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "e2e", "mcp", "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllStringSubmatch(string(raw), -1) {
			names = append(names, m[1])
		}
	}
	return names
}
