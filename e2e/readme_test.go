package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReadmeProgram runs the program of the README against the engine, with a test image.
func TestReadmeProgram(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile(filepath.Join(root(t), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)```go\n(.*?)```").FindSubmatch(readme)
	if block == nil {
		t.Fatal("the README has no Go program")
	}
	program := strings.Replace(string(block[1]), "python:3.11-slim", "workcell/python:3.11", 1)
	dir, err := os.MkdirTemp(root(t), ".readme-") // inside the module, so that it builds from this tree
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	file := filepath.Join(dir, "main.go")
	if err := os.WriteFile(file, []byte(program), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "run", file)
	cmd.Dir = root(t)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if string(out) != "42\n" {
		t.Errorf("printed %q, want 42", out)
	}
}
