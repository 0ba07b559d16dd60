package backendtest_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestEveryDriverConforms verifies that each driver package, recognized by a constructor New, has a short
// conformance_test.go with a run of the suite. Package backend/memory runs no programs, so it only runs the lifecycle
// groups.
func TestEveryDriverConforms(t *testing.T) {
	t.Parallel()
	entries, err := os.ReadDir("..")
	checktest.Must(t, err)
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
		if n := strings.Count(string(source), "\n"); n > 60 {
			t.Errorf("backend/%s/conformance_test.go has %d lines, want at most 60", e.Name(), n)
		}
		run := "\n\tbackendtest.Run("
		if e.Name() == "memory" {
			run = "\n\tbackendtest.RunGroups("
		}
		if !strings.Contains(string(source), run) {
			t.Errorf("backend/%s/conformance_test.go does not call %s…)", e.Name(), strings.TrimSpace(run))
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
	checktest.Must(t, err)
	for _, file := range files {
		source, err := os.ReadFile(file)
		checktest.Must(t, err)
		if !strings.HasSuffix(file, "_test.go") && strings.Contains(string(source), "\nfunc New(") {
			return true
		}
	}
	return false
}
