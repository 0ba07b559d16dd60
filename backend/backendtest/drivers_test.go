package backendtest_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestEveryDriverConforms looks at each folder beside this one that has a constructor of backends: it must run the suite
// from a short conformance_test.go of its own, and backend/memory, which runs no programs, the part about lives.
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
		run := "Run"
		if e.Name() == "memory" {
			run = "RunGroups"
		}
		if !calls(t, filepath.Join(dir, "conformance_test.go"), run) {
			t.Errorf("backend/%s/conformance_test.go does not call backendtest.%s", e.Name(), run)
		}
	}
	if drivers < 3 {
		t.Errorf("%d drivers were found, want docker, containerd and local", drivers)
	}
}

// declaresNew reports whether a package has a constructor New.
func declaresNew(t *testing.T, dir string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		return !strings.HasSuffix(file, "_test.go") && slices.ContainsFunc(parse(t, file).Decls, func(d ast.Decl) bool {
			f, ok := d.(*ast.FuncDecl)
			return ok && f.Recv == nil && f.Name.Name == "New"
		})
	})
}

// calls reports whether a file calls the function of this package that has the name.
func calls(t *testing.T, file, name string) bool {
	t.Helper()
	found := false
	ast.Inspect(parse(t, file), func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if sel, ok := call.Fun.(*ast.SelectorExpr); ok && sel.Sel.Name == name {
				pkg, ok := sel.X.(*ast.Ident)
				found = found || ok && pkg.Name == "backendtest"
			}
		}
		return !found
	})
	return found
}

func parse(t *testing.T, file string) *ast.File {
	t.Helper()
	tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}
