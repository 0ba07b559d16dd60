// Package npmtest finds the npm programs for tests: MCP clients and servers, and coding agents.
package npmtest

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// Tools returns a Node.js program and the directory with the packages of hack/mcp. It installs them if necessary. It is
// for tests of packages directly below e2e, whose directory is the current directory.
func Tools(t testing.TB) (node, modules string) {
	t.Helper()
	script := filepath.Join("..", "..", "hack", "tool.sh")
	run := func(what string) string {
		out, err := rig.Output(exec.Command(script, what))
		checktest.Must(t, err)
		return strings.TrimSpace(out)
	}
	return run("node"), filepath.Join(run("npm"), "node_modules")
}

// OpenCode returns the program of the coding agent OpenCode.
func OpenCode(t *testing.T, modules string) string {
	t.Helper()
	return program(t, modules, "opencode-linux-x64-baseline", "bin", "opencode")
}

// ClaudeCode returns the program of the coding agent Claude Code.
func ClaudeCode(t *testing.T, modules string) string {
	t.Helper()
	arch := map[string]string{"amd64": "x64"}[runtime.GOARCH]
	return program(t, modules, "@anthropic-ai", "claude-code-linux-"+cmp.Or(arch, runtime.GOARCH), "claude")
}

func program(t *testing.T, modules string, path ...string) string {
	t.Helper()
	name := filepath.Join(append([]string{modules}, path...)...)
	if _, err := os.Stat(name); err != nil {
		t.Fatalf("no coding agent for this machine: %v", err)
	}
	return name
}
