package backendtest_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestEveryDriverConforms looks at each folder beside this one that has a constructor of backends: it must run the suite
// from a short conformance_test.go of its own, and its benchmarks.
func TestEveryDriverConforms(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	drivers := 0
	for _, e := range entries {
		dir := filepath.Join("..", e.Name())
		if !e.IsDir() || !declaresNew(t, dir) {
			continue
		}
		drivers++
		source, err := os.ReadFile(filepath.Join(dir, "conformance_test.go"))
		if err != nil {
			t.Errorf("backend/%s does not run the conformance suite: %v", e.Name(), err)
			continue
		}
		if n := bytes.Count(source, []byte("\n")); n > 60 {
			t.Errorf("backend/%s/conformance_test.go has %d lines, want at most 60", e.Name(), n)
		}
		if !calls(t, dir, "conformance_test.go", "Run") {
			t.Errorf("backend/%s/conformance_test.go does not call backendtest.Run", e.Name())
		}
		if !calls(t, dir, "bench_test.go", "RunBenchmarks") {
			t.Errorf("backend/%s/bench_test.go does not call backendtest.RunBenchmarks", e.Name())
		}
	}
	if drivers < 3 {
		t.Errorf("%d drivers were found, want docker, containerd and local", drivers)
	}
}

// declaresNew tells whether a package has a constructor New that gives a *Backend.
func declaresNew(t *testing.T, dir string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range tree.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "New" {
				return true
			}
		}
	}
	return false
}

// calls tells whether a file calls a function of this package, unconditionally or not.
func calls(t *testing.T, dir, file, name string) bool {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, file), nil, parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return false
	}
	found := false
	ast.Inspect(tree, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == name {
				pkg, ok := sel.X.(*ast.Ident)
				found = found || ok && pkg.Name == "backendtest"
			}
		}
		return true
	})
	return found
}
