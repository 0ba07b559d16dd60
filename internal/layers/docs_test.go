package layers

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestArchitectureNamesPackages: the table in ARCHITECTURE.md contains every package, and no name without packages. A
// package belongs to the longest matching name. "x/..." means x and everything below it.
func TestArchitectureNamesPackages(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(root, "ARCHITECTURE.md"))
	must(t, err)
	_, text, _ = bytes.Cut(text, []byte("\n## Packages\n"))
	text, _, _ = bytes.Cut(text, []byte("\n## "))
	count := map[string]int{} // number of packages for each name
	for _, m := range regexp.MustCompile("(?m)^\\| (`[^|]+) \\| ").FindAllSubmatch(text, -1) {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllSubmatch(m[1], -1) {
			count[string(name[1])] = 0
		}
	}
	all := packages(t, root)
	for dir := range packages(t, filepath.Join(root, "e2e")) {
		all[path.Join("e2e", dir)] = true
	}
	for dir := range all {
		longest := ""
		for name := range count {
			tree, ok := strings.CutSuffix(name, "/...")
			if (dir == name || ok && within(dir, tree)) && len(name) > len(longest) {
				longest = name
			}
		}
		if longest == "" {
			t.Errorf("ARCHITECTURE.md does not name the package %s", dir)
		}
		count[longest]++
	}
	for name, n := range count {
		if n == 0 {
			t.Errorf("ARCHITECTURE.md names the package %s, which does not exist", name)
		}
	}
}

// packages returns the directories of the module's packages, including packages with only tests.
func packages(t *testing.T, root string) map[string]bool {
	t.Helper()
	out := map[string]bool{}
	if err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return skipDir(root, path, d)
		}
		if strings.HasSuffix(path, ".go") {
			rel, err := filepath.Rel(root, filepath.Dir(path))
			out[filepath.ToSlash(rel)] = true
			return err
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}
