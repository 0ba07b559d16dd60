package patch

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestLinks: however links of a patch, of one before it and of the directory come together, none that was made leads out
// of the directory or below .git, and nothing is written through any.
func TestLinks(t *testing.T) {
	t.Parallel()
	f := file("x\n")
	created := func(tree Tree) *Patch { return Compare(Tree{}, tree) }
	circles, long := Tree{}, Tree{}
	for i := range 60 {
		circles[fmt.Sprint("c", i)] = link(fmt.Sprint("c", (i+1)%60))
		long[fmt.Sprint("l", i)] = link(fmt.Sprint("l", i+1))
	}
	for _, c := range []struct {
		name    string
		mine    Tree // in the directory; links to "OUT" lead to the directory beside it
		patches []*Patch
		left    []string // alone, of all patches
	}{
		{"inside", Tree{"real/f": f}, []*Patch{created(Tree{"l": link("real"), "d/up": link("../real/f"), "d/dot": link("./e"), "nowhere": link("not/yet")})}, nil},
		{"to the directory itself", nil, []*Patch{created(Tree{"d/l": link("..")})}, nil},
		{"by its own text", nil, []*Patch{created(Tree{"abs": link("/etc"), "up": link(".."), "d/up": link("../../x"), "empty": link(""), "nul": link("a\x00b")})}, []string{"abs", "d/up", "empty", "nul", "up"}},
		{"up behind a name", Tree{"a/b/f": f}, []*Patch{created(Tree{"l": link("a/../../x"), "m": link("a/b/..")})}, []string{"l", "m"}},
		{"two of a patch", nil, []*Patch{created(Tree{"a": link("sub"), "sub/b": link(".."), "sub/c": link("../a/b")})}, nil},
		{"up through another of the patch", nil, []*Patch{created(Tree{"a": link("d/e"), "d/e": link("."), "out": link("a/../../x")})}, []string{"out"}},
		{"written through one of the patch", Tree{"real/f": f}, []*Patch{created(Tree{"l": link("real")}), created(Tree{"l/new": f})}, []string{"l/new"}},
		{"a link and a file behind it in one patch", nil, []*Patch{created(Tree{"l": link("real"), "l/new": f})}, []string{"l"}},
		{"a link and a link behind it in one patch", Tree{"real/f": f}, []*Patch{created(Tree{"l": link("real"), "l/new": link("x")})}, []string{"l/new"}},
		{"through one of the directory that leads out", Tree{"mine": link("OUT")}, []*Patch{created(Tree{"l": link("mine/x"), "m": link("mine")})}, []string{"l", "m"}},
		{"through two", Tree{"real/mine": link("OUT")}, []*Patch{created(Tree{"l": link("p/mine"), "p": link("real")})}, []string{"l"}},
		{"through two, the second by a later patch", Tree{"real/mine": link("OUT")}, []*Patch{created(Tree{"l": link("p/mine")}), created(Tree{"p": link("real")})}, []string{"p"}},
		{"one of the directory would lead out", Tree{"d/mine": link("x/../../f"), "f": f}, []*Patch{created(Tree{"d/x": link(".."), "ok": link("f")})}, []string{"d/x"}},
		{"written through one of the directory", Tree{"mine": link("real"), "real/f": f}, []*Patch{created(Tree{"mine/new": f, "mine/l": link("f")})}, []string{"mine/new", "mine/l"}},
		{"deleted through one of the directory", Tree{"mine": link("real"), "real/f": f}, []*Patch{Compare(Tree{"mine/f": f}, Tree{})}, []string{"mine/f"}},
		{"made executable through one of the directory", Tree{"mine": link("real"), "real/f": f}, []*Patch{Compare(Tree{"mine/f": f}, Tree{"mine/f": script("x\n")})}, []string{"mine/f"}},
		{"renamed through one of the directory", Tree{"mine": link("real"), "real/f": f}, []*Patch{Compare(Tree{"mine/f": f}, Tree{"mine/g": f}), Compare(Tree{"real/f": f}, Tree{"mine/g": f})}, []string{"mine/g", "mine/g"}},
		{"merged through one of the directory", Tree{"mine": link("real"), "real/f": file("1\n2\n3\n4\n")}, []*Patch{Compare(Tree{"mine/f": file("1\n2\n3\nx\n")}, Tree{"mine/f": file("one\n2\n3\nx\n")})}, []string{"mine/f"}},
		{"where a changed one stays as it is", Tree{"p": link("OUT")}, []*Patch{Compare(Tree{"p": link("a")}, Tree{"p": link("b"), "l": link("p/x")})}, []string{"p", "l"}},
		{"to .git", Tree{"g": link(".git"), ".git/hooks/f": f}, []*Patch{created(Tree{"a": link(".git/hooks"), "b": link("g/hooks"), "c": link(".GIT"), "d/e": link("../git~1/x"), "h": link(".git./x")})}, []string{"a", "b", "c", "d/e", "h"}},
		{"written to .git through one", Tree{"g": link(".git"), ".git/hooks/f": f}, []*Patch{created(Tree{"g/hooks/new": f})}, []string{"g/hooks/new"}},
		{"circles", nil, []*Patch{created(circles)}, sortedNames(circles)},
		{"long ways", nil, []*Patch{created(long)}, []string{"l0", "l1", "l10", "l11", "l12", "l13", "l14", "l15", "l16", "l17", "l18", "l19", "l2", "l3", "l4", "l5", "l6", "l7", "l8", "l9"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			above := t.TempDir()
			dir, out := filepath.Join(above, "dir"), filepath.Join(above, "out")
			mine := Tree{}
			for name, e := range c.mine {
				if e.isLink() && string(e.Content) == "OUT" {
					e = link(out)
				}
				mine[name] = e
			}
			if err := os.Rename(put(t, mine), dir); err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(out, "x"), 0o755); err != nil {
				t.Fatal(err)
			}
			var left []string
			for _, p := range c.patches {
				r, err := p.Apply(dir)
				if err != nil {
					t.Fatal(err)
				}
				for _, k := range r.Conflicts {
					left = append(left, k.Path)
				}
			}
			if !slices.Equal(left, c.left) {
				t.Errorf("left alone: %q, want %q", left, c.left)
			}
			checkInside(t, dir, mine)
			if found := get(t, out); len(found) > 0 {
				t.Errorf("written outside: %q", found)
			}
			for name, e := range get(t, dir) {
				if was, ok := mine[name]; strings.HasPrefix(name, "real/") && (!ok || !was.equal(&e)) || ok && !was.equal(&e) {
					t.Errorf("written through a link: %s", name)
				}
			}
		})
	}
}

func sortedNames(tree Tree) []string {
	var names []string
	for name := range tree {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// checkInside has the kernel follow each link of dir: those that are not mine lead nowhere, or inside, but not to .git.
func checkInside(t *testing.T, dir string, mine Tree) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, at)
		_, isMine := mine[name]
		if err != nil || d.Type()&fs.ModeSymlink == 0 || isMine && !strings.HasPrefix(name, "d/") {
			return err
		}
		to, err := filepath.EvalSymlinks(at)
		if err == nil && (to != dir && !strings.HasPrefix(to, dir+"/") || strings.Contains(to, "/.git")) {
			t.Errorf("%s leads to %s", name, to)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestWriteLinks: outputs keep to the same rules.
func TestWriteLinks(t *testing.T) {
	t.Parallel()
	dir := put(t, Tree{"real/mine": link("/usr"), "p": link("real/mine")})
	r, err := Tree{"l": link("p/bin"), "p": link("real"), "q/f": file("x"), "q/l": link("f"), "m": link("real/mine"), "q": link("real")}.Write(dir, nil, false)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"q/f", "q/l"}; !slices.Equal(r.Applied, want) || len(r.Conflicts) != 4 {
		t.Errorf("%+v, want %q applied", r, want)
	}
}

// TestTooManyLinks: how far links are followed has a bound.
func TestTooManyLinks(t *testing.T) {
	t.Parallel()
	l := &links{at: map[string]string{}, left: 10_000}
	fresh := map[string]string{}
	for i := range 100 {
		fresh[fmt.Sprint(i)] = strings.Repeat("a/", 100)
	}
	if refused := l.refuse(fresh); len(refused) != len(fresh) {
		t.Errorf("%d of %d links are refused", len(refused), len(fresh))
	}
}
