package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// maxLibraryBytes is the maximum size of a program that uses only sandboxes of the local backend, as built by `go
// build`, with symbols.
const maxLibraryBytes = 20 << 20

// sandboxProgram is a minimal program with the library.
const sandboxProgram = `package main

import (
	"context"
	"fmt"

	"github.com/workcell-dev/workcell/backend/local"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

func main() {
	ctx := context.Background()
	engine, err := local.New(ctx, nil)
	if err != nil {
		panic(err)
	}
	defer engine.Close()
	manager, err := session.NewManager(engine, nil)
	if err != nil {
		panic(err)
	}
	defer manager.Close(ctx)
	s, _, err := manager.Open(ctx, session.UserKey("weight"), session.Request{Image: "host"})
	if err != nil {
		panic(err)
	}
	res, err := s.Exec(ctx, sandbox.ExecRequest{Argv: []string{"echo", "light"}})
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s", res.Stdout.Bytes())
}
`

// TestLibraryWeight: a program with sandboxes of the local backend is small, runs, and links no engine client, Genkit,
// MCP, database, or OpenTelemetry SDK.
func TestLibraryWeight(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp(root(t), ".readme-") // inside the module, to ensure that it is built from this tree
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(sandboxProgram), 0o644))
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	heavy := []string{
		"github.com/docker/", "github.com/moby/", "github.com/containerd/containerd", "github.com/containerd/go-cni",
		"github.com/containernetworking/", "github.com/firebase/genkit/", "github.com/modelcontextprotocol/", "google.golang.org/",
		"modernc.org/", "github.com/jackc/", "cel.dev/", "go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters",
		"github.com/spf13/",
	}
	deps := strings.Fields(run("go", "list", "-deps", "."))
	for _, dep := range deps {
		for _, module := range heavy {
			if strings.HasPrefix(dep, module) {
				t.Errorf("it links %s", dep)
			}
		}
	}
	program := filepath.Join(dir, "program")
	run("go", "build", "-o", program, ".")
	info, err := os.Stat(program)
	must(t, err)
	t.Logf("%d packages, %.1f MiB", len(deps), float64(info.Size())/(1<<20))
	if info.Size() > maxLibraryBytes {
		t.Errorf("the program has %d bytes, want at most %d", info.Size(), maxLibraryBytes)
	}
	if got := run(program); got != "light\n" {
		t.Errorf("the program printed %q", got)
	}
}
