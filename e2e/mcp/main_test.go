// Package mcp_test runs MCP clients against the real command: misbehaving raw clients, the official conformance suite,
// the Inspector, and a coding agent. Tests whose names begin with R and a number verify a guarantee of
// docs/operations/mcp-server.md.
package mcp_test

import (
	"os"
	"testing"

	"github.com/workcell-dev/workcell/e2e/rig"
	"github.com/workcell-dev/workcell/internal/checktest"
)

var must, eventually = checktest.Must, checktest.Eventually

// binary is the path of the command, built once before the first test.
var binary string

// pythonMap replaces the official image with the test image.
const pythonMap = "--map-image=python:3.11-slim=workcell/python:3.11"

func TestMain(m *testing.M) {
	// A reaper that outlives a test's server would prevent the removal of its directory.
	if err := os.Setenv("WORKCELL_REAPER", "off"); err != nil {
		panic(err) // the name is valid
	}
	os.Exit(rig.Tests{M: m, Binary: &binary}.Run())
}
