// Package mcp_test runs MCP clients against the real command: misbehaving raw clients, the official conformance suite,
// the Inspector, and a coding agent. Tests whose names begin with R and a number verify a guarantee of
// docs/operations/mcp-server.md.
package mcp_test

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/internal/commandtest"
)

var must, eventually = checktest.Must, checktest.Eventually

// binaryEnv is the environment variable with the path of the command under test.
const binaryEnv = "WORKCELL_TEST_MCP_BINARY"

// pythonMap replaces the official image with the test image.
const pythonMap = "--map-image=python:3.11-slim=workcell/python:3.11"

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "workcell-mcp-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir) // a failure leaves only temporary files
	path, err := commandtest.Build(dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	// A reaper that outlives a test's server would prevent the removal of its directory.
	if err := errors.Join(os.Setenv(binaryEnv, path), os.Setenv("WORKCELL_REAPER", "off")); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}
