// Package npmtest finds the programs from npm that tests run: MCP clients and servers, and coding agents.
package npmtest

import (
	"bytes"
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// Tools returns a Node.js and the folder with the packages of hack/mcp, which are installed where that was not done. It is
// for tests of packages directly below e2e, whose directory they run in.
func Tools(t *testing.T) (node, modules string) {
	t.Helper()
	script := filepath.Join("..", "..", "hack", "tool.sh")
	run := func(what string) string {
		cmd := exec.Command(script, what)
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %s: %v: %s", script, what, err, stderr.Bytes())
		}
		return strings.TrimSpace(string(out))
	}
	return run("node"), filepath.Join(run("npm"), "node_modules")
}

// OpenCode returns the program of a coding agent.
func OpenCode(t *testing.T, modules string) string {
	t.Helper()
	return program(t, modules, "opencode-linux-x64-baseline", "bin", "opencode")
}

// ClaudeCode returns the program of another.
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
