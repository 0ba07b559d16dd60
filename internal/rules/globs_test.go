package rules_test

import (
	"io/fs"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/internal/rules"
)

func TestGlobMatch(t *testing.T) {
	t.Parallel()
	for glob, c := range map[string]struct{ match, enter, no, pass []string }{
		"report.csv":   {match: []string{"report.csv", "report.csv/in/it"}, enter: []string{"report.csv"}, no: []string{"d/report.csv", "report.csvx"}, pass: []string{"d"}},
		"dist/**":      {match: []string{"dist/a", "dist/b/c"}, enter: []string{"dist", "dist/b"}, no: []string{"x/dist/a", "distant/a"}, pass: []string{"x", "distant"}},
		"**/*.xml":     {match: []string{"a.xml", "d/e/a.xml"}, enter: []string{"d", "d/e"}, no: []string{"a.xmlx"}},
		"d?/*/r.txt?":  {match: []string{"d1/x/r.txt"}, enter: []string{"d1", "d1/x", "d1/x/r.txt"}, no: []string{"d/x/r.txt", "d1/x/y/r.txt"}, pass: []string{"d", "d12", "d1/x/y"}},
		"{a/{b,c},d}":  {match: []string{"a/b", "d"}},
		"{a,b}.md":     {match: []string{"a.md"}, pass: []string{"d"}},
		"{**,a}/b":     {match: []string{"c/d/b"}, enter: []string{"c/d"}},
		`\a/b`:         {match: []string{"a/b"}, enter: []string{"a"}, pass: []string{"d"}},
		"{a/b,c}/f":    {match: []string{"a/b/f", "c/f"}, enter: []string{"a", "a/b", "c"}, no: []string{"a/f"}},
		"[ab].c?":      {match: []string{"a.c"}, no: []string{"c.c"}, pass: []string{"d"}},
		`\[draft\].md`: {match: []string{"[draft].md"}, no: []string{"d.md"}},
	} {
		g := rules.Globs{glob}
		if p := g.Problems(); p != nil {
			t.Errorf("%s: %v", glob, p)
		}
		for name, want := range expect(c.match, c.no) {
			if g.Match(name) != want {
				t.Errorf("%s matches %s: %v", glob, name, !want)
			}
		}
		for name, want := range expect(c.enter, c.pass) {
			if g.Enter(name) != want {
				t.Errorf("%s enters %s: %v", glob, name, !want)
			}
		}
	}
}

func expect(yes, no []string) map[string]bool {
	out := map[string]bool{}
	for _, name := range yes {
		out[name] = true
	}
	for _, name := range no {
		out[name] = false
	}
	return out
}

func TestGlobProblems(t *testing.T) {
	t.Parallel()
	bad := rules.Globs{"/etc/passwd", "../x", "a/../b", "./a", "a//b", "", "?", ".", "a[", "{a", "ok", "ok",
		strings.Repeat("{a,a}", 40) + "b", strings.Repeat("{a,a}", 9), strings.Repeat("{b,b}", 9), "last"}
	var at []string
	for _, p := range bad.Problems() {
		at = append(at, strings.Trim(p.Field, "outps[]"))
	}
	if diff := cmp.Diff(strings.Fields("0 1 2 3 4 5 6 7 8 9 11 12 14"), at); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
	if p := make(rules.Globs, 101).Problems(); len(p) != 1 || p[0].Field != "outputs" {
		t.Errorf("101 of them: %v", p)
	}
}

// TestGlobLost verifies that an incomplete directory counts if a pattern leads to it without **, or if it has outputs.
func TestGlobLost(t *testing.T) {
	t.Parallel()
	for glob, c := range map[string]struct{ lost, kept []string }{
		"**/*.png":        {[]string{".", "img"}, []string{"d", "img/d"}},
		"d/**/*.png":      {[]string{".", "d"}, []string{"img", "d/d"}},
		"*/d/*.png?":      {[]string{"img", "a/d"}, []string{"img/e", "a/d/e"}},
		"{d/a,b}/*.png":   {[]string{".", "img"}, []string{"d"}},
		"dist/**":         {[]string{"dist", "dist/d"}, []string{"d"}},
		"img/a.png":       {nil, []string{".", "img"}},
		"img":             {[]string{"img", "img/d"}, []string{"."}},
		"{report,a.b}.md": {[]string{"."}, []string{"d", "img"}},
	} {
		lost := rules.Globs{glob}.Lost([]string{"img/a.png"})
		for dir, want := range expect(c.lost, c.kept) {
			if lost(dir) != want {
				t.Errorf("%s: %s: %v", glob, dir, !want)
			}
		}
	}
}

func TestGlobMissing(t *testing.T) {
	t.Parallel()
	first, missing, optional := rules.Globs{"a", "b?", "c", "d/**?", "e", "f"}.Missing([]string{"a", "e/f"})
	if first != 2 || !slices.Equal(missing, []string{"c", "f"}) || !slices.Equal(optional, []string{"b", "d/**"}) {
		t.Errorf("missing %v from %d on, may be missing %v", missing, first, optional)
	}
}

func TestGlobFiles(t *testing.T) {
	t.Parallel()
	names := rules.Globs{"d/**", "r.txt"}.In(fstest.MapFS{"d/e/f": {}, "r.txt": {}, "other/r.txt": {}, "d/g": {}})
	if diff := cmp.Diff([]string{"d/e/f", "d/g", "r.txt"}, names); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if names := (rules.Globs{"**"}).In(fstest.MapFS{}); names != nil {
		t.Errorf("of nothing: %v", names)
	}
}

// FuzzGlob: patterns and paths never cause a panic, and Enter accepts the parent directories of matching paths.
func FuzzGlob(f *testing.F) {
	f.Add("dist/**", "dist/a/b")
	f.Add("{a,b/c}/*?", "b/c/d")
	f.Fuzz(func(t *testing.T, glob, name string) {
		g := rules.Globs{glob}
		if g.Problems() != nil || !fs.ValidPath(name) || !g.Match("d/"+name) {
			return
		}
		if !g.Enter("d") {
			t.Errorf("%q matches %q and does not enter d", glob, "d/"+name)
		}
	})
}
