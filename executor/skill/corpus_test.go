package skill_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/executor/skill"
)

// TestGoodCorpus verifies that skills that follow the standard have no problems and are loaded without diagnostics.
func TestGoodCorpus(t *testing.T) {
	fsys := os.DirFS("testdata/good")
	for _, name := range directories(t, "testdata/good") {
		if err := skill.Check(fsys, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		s, diagnostics, err := skill.Load(fsys, name)
		if err != nil || len(diagnostics) != 0 || s.Name != name {
			t.Errorf("%s: %q, %q, %v", name, s.Name, diagnostics, err)
		}
	}
}

// TestBadCorpus verifies that violations of the standard are reported with their line, and skills that coding agents
// accept are loaded.
func TestBadCorpus(t *testing.T) {
	known := map[string]struct {
		problems string // "line message", with the beginning of the message
		loads    bool
	}{
		"Capitals":          {`2 name "Capitals": it must be lower case`, true},
		"-hyphen":           {`2 name "-hyphen": it must be lower case`, true},
		"two--hyphens":      {`2 name "two--hyphens": it must be lower case`, true},
		"other-directory":   {`2 name "another-name": it must match its directory`, true},
		"unnamed":           {`1 name is missing`, true},
		"undescribed":       {`1 description is missing`, false},
		"empty-description": {`3 description is missing`, false},
		"unknown-field":     {`4 unknown field "hooks"`, true},
		"list-of-tools":     {`4 allowed-tools is not text`, true},
		"metadata-text":     {`4 metadata is not a map`, true},
		"unquoted-colon":    {`4 unknown field "version"`, true},
		"no-front-matter":   {`1 it must start with front matter`, false},
		"no-end":            {`1 the front matter must end`, false},
		"tab":               {`5 malformed YAML: a tab`, false},
		"two-documents":     {`5 malformed YAML`, false},
		"twice":             {`4 `, false},
		"bomb":              {`2 the front matter has more than 5000 values`, false},
		"list":              {`2 the front matter is not a map`, false},
	}
	fsys := os.DirFS("testdata/bad")
	for _, name := range directories(t, "testdata/bad") {
		want, ok := known[name]
		if !ok {
			t.Errorf("%s has no expectation", name)
		}
		delete(known, name)
		var got []string
		for i, p := range problems(skill.Check(fsys, name)) {
			line := fmt.Sprintf("%d %s", p.Line, p.Message)
			if expected := strings.Split(want.problems, "\n"); i < len(expected) && strings.HasPrefix(line, expected[i]) {
				line = expected[i]
			}
			got = append(got, line)
		}
		if diff := cmp.Diff(want.problems, strings.Join(got, "\n")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if _, _, err := skill.Load(fsys, name); (err == nil) != want.loads || err != nil && !errors.Is(err, skill.ErrInvalid) {
			t.Errorf("%s: loaded: %v", name, err)
		}
	}
	for name := range known {
		t.Errorf("there is no %s", name)
	}
}

// problems returns the problems in an error.
func problems(err error) (list []*skill.Problem) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range joined.Unwrap() {
			list = append(list, problems(one)...)
		}
		return list
	}
	var p *skill.Problem
	if errors.As(err, &p) {
		list = append(list, p)
	}
	return list
}

func directories(t testing.TB, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil || len(list) == 0 {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// corpus adds each SKILL.md of the corpus to a fuzz test.
func corpus(f *testing.F) {
	f.Helper()
	files, err := filepath.Glob("testdata/*/*/SKILL.md")
	if err != nil || len(files) == 0 {
		f.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
}
