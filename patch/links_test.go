package patch

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/checktest"
)

var must = checktest.Must

// TestLinks: no link of a patch leads outside the directory or below .git, even through links of the same patch, an
// earlier patch, or the directory. Nothing is written through a link.
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
		mine    Tree // in the directory; links to "OUT" lead to a sibling directory
		patches []*Patch
		left    []string // unapplied changes, from all patches
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
		{"replacing a link and a file", Tree{"p": link("real"), "q": link(".git"), ".git/f": f, "d/f": f}, []*Patch{
			Compare(Tree{"p": link("real"), "d/f": f}, Tree{"p": link("q"), "d/f": link("../q/f")})}, []string{"d/f", "p"}},
		{"written through one that leads out since a later patch", Tree{"real/mine": link("OUT")}, []*Patch{
			created(Tree{"l": link("p/mine")}), created(Tree{"p": link("real")}), created(Tree{"l/new": f, "l/x/new": link("y")})}, []string{"l/new", "l/x/new"}},
		{"written through one of the directory that leads out since", Tree{"mine": link("x/../../out"), "f": f}, []*Patch{
			created(Tree{"d/f": f, "x": link("d")}), Compare(Tree{"mine/f": f}, Tree{"mine/new": f})}, []string{"mine/f", "mine/new"}},
		{"written through one of the directory", Tree{"mine": link("real"), "real/f": f}, []*Patch{created(Tree{"mine/new": f, "mine/l": link("f")})}, []string{"mine/new", "mine/l"}},
		{"deleted through one of the directory", Tree{"mine": link("real"), "real/f": f}, []*Patch{Compare(Tree{"mine/f": f}, Tree{})}, []string{"mine/f"}},
		{"made executable through one of the directory", Tree{"mine": link("real"), "real/f": f}, []*Patch{Compare(Tree{"mine/f": f}, Tree{"mine/f": script("x\n")})}, []string{"mine/f"}},
		{"renamed through one of the directory", Tree{"mine": link("real"), "real/f": f}, []*Patch{Compare(Tree{"mine/f": f}, Tree{"mine/g": f}), Compare(Tree{"real/f": f}, Tree{"mine/g": f})}, []string{"mine/f", "mine/g", "mine/g"}},
		{"merged through one of the directory", Tree{"mine": link("real"), "real/f": file("1\n2\n3\n4\n")}, []*Patch{Compare(Tree{"mine/f": file("1\n2\n3\nx\n")}, Tree{"mine/f": file("one\n2\n3\nx\n")})}, []string{"mine/f"}},
		{"where a changed one stays as it is", Tree{"p": link("OUT")}, []*Patch{Compare(Tree{"p": link("a")}, Tree{"p": link("b"), "l": link("p/x")})}, []string{"p", "l"}},
		{"to .git", Tree{"g": link(".git"), ".git/hooks/f": f}, []*Patch{created(Tree{"a": link(".git/hooks"), "b": link("g/hooks"), "c": link(".GIT"), "d/e": link("../git~1/x"), "h": link(".git./x")})}, []string{"a", "c", "d/e", "h", "b"}},
		{"written to .git through one", Tree{"g": link(".git"), ".git/hooks/f": f}, []*Patch{created(Tree{"g/hooks/new": f})}, []string{"g/hooks/new"}},
		{"circles", nil, []*Patch{created(circles)}, slices.Sorted(maps.Keys(circles))},
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
			must(t, os.Rename(put(t, mine), dir))
			must(t, os.MkdirAll(filepath.Join(out, "x"), 0o755))
			var left []string
			for _, p := range c.patches {
				r, err := applied(t, p, dir)
				must(t, err)
				for _, k := range r.Conflicts {
					left = append(left, k.Path)
					if strings.Contains(k.Reason, out) {
						t.Errorf("%s names a path outside: %s", k.Path, k.Reason)
					}
				}
				checkInside(t, dir, p, mine)
			}
			if !slices.Equal(left, c.left) {
				t.Errorf("left alone: %q, want %q", left, c.left)
			}
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

// checkInside resolves each link of the patch with the kernel. The target must not exist, or must be inside the
// directory and not below .git.
func checkInside(t *testing.T, dir string, p *Patch, mine Tree) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(dir)
	must(t, err)
	for _, c := range p.Changes {
		to, err := filepath.EvalSymlinks(filepath.Join(dir, c.Path))
		_, isMine := mine[c.Path]
		if err == nil && !isMine && (to != dir && !strings.HasPrefix(to, dir+"/") || strings.Contains(to, "/.git")) {
			t.Errorf("%s leads to %s", c.Path, to)
		}
	}
}

// TestWriteLinks: outputs follow the same rules.
func TestWriteLinks(t *testing.T) {
	t.Parallel()
	dir := put(t, Tree{"real/mine": link("/usr"), "p": link("real/mine")})
	r, err := Tree{"l": link("p/bin"), "p": link("real"), "q/f": file("x"), "q/l": link("f"), "m": link("real/mine"), "q": link("real")}.Write(dir, nil, false)
	must(t, err)
	if want := []string{"q/f", "q/l"}; !slices.Equal(r.Applied, want) || len(r.Conflicts) != 4 {
		t.Errorf("%+v, want %q applied", r, want)
	}
}

// TestTooManyLinks: all links are undone if the total length of their paths is too large.
func TestTooManyLinks(t *testing.T) {
	t.Parallel()
	root, err := os.OpenRoot(put(t, Tree{"a/a/a/f": file("x")}))
	must(t, err)
	defer root.Close()
	a := newApplier(root, func(func(string) bool) {})
	a.left = 50
	var links []step
	for i := range 10 {
		links = append(links, step{name: fmt.Sprint(i), next: new(link("a/a/a"))})
	}
	var r Result
	if err := a.makeLinks(links, &r); err != nil || len(r.Conflicts) != len(links) {
		t.Errorf("%+v, %v", r, err)
	}
	if made := get(t, root.Name()); len(made) > 1 {
		t.Errorf("left behind: %q", made)
	}
}
