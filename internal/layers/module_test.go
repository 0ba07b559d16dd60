package layers

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestModuleCanBePublished: module proxies and `go install` accept a version of this tree. `hack/release.sh install`
// tries the complete process.
func TestModuleCanBePublished(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	must(t, err)
	if found := regexp.MustCompile(`(?m)^(replace|exclude)\b.*`).Find(mod); found != nil {
		t.Errorf("go.mod: `go install MODULE@VERSION` refuses %q", found)
	}
	folded := map[string]string{}
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // a file that another test created and removed
			return nil
		}
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == ".git" || path == filepath.Join(root, "bin") || path == filepath.Join(root, "dist") || path == filepath.Join(root, ".cache")) {
			return fs.SkipDir
		}
		name, _ := filepath.Rel(root, path)
		if why := unpublishable(d.Name()); why != "" && path != root {
			t.Errorf("%s: %s", name, why)
		}
		if other, ok := folded[strings.ToLower(name)]; ok {
			t.Errorf("%s and %s are one file on some systems", name, other)
		}
		folded[strings.ToLower(name)] = name
		return nil
	})
	must(t, err)
	for name, bad := range map[string]bool{"nul.yaml": true, "COM1": true, "a?b": true, "x ": true, "null.yaml": false, ".golangci.yml": false} {
		if got := unpublishable(name) != ""; got != bad {
			t.Errorf("unpublishable(%q) is %v", name, got)
		}
	}
}

// unpublishable returns the reason why a file of a module cannot have this name, or an empty string if it can. It
// follows the rules of golang.org/x/mod/module.CheckFilePath.
func unpublishable(name string) string {
	stem, _, _ := strings.Cut(strings.ToLower(name), ".")
	switch {
	case regexp.MustCompile(`^(con|prn|aux|nul|com[0-9]|lpt[0-9])$`).MatchString(stem):
		return "Windows has no such file name"
	case strings.ContainsAny(name, "\"'*<>?`|/\\:") || strings.TrimSpace(name) != name:
		return "it has a character that a module's files may not have"
	}
	return ""
}
