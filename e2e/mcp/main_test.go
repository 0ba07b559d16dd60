// Package mcp_test runs MCP clients against the real command: raw ones that misbehave, the official conformance suite,
// the Inspector and a coding agent. Tests whose names begin with R and a number show a guarantee of docs/mcp.md.
package mcp_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/workcell-dev/workcell/internal/commandtest"
)

// binaryEnv names the command that the tests of this process run.
const binaryEnv = "WORKCELL_TEST_MCP_BINARY"

// pythonMap uses the image that the tests have in place of the one that is asked for.
const pythonMap = "--map-image=python:3.11-slim=workcell/python:3.11"

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "workcell-mcp-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) // nothing that matters is left when it fails
	path, err := commandtest.Build(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// What outlives a test's server would be in the way of its directory.
	if err := errors.Join(os.Setenv(binaryEnv, path), os.Setenv("WORKCELL_REAPER", "off")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
