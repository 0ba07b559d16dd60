package patch

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// TestIgnoreAsGit: rules of every kind, and random rules, exclude the same paths as in Git.
func TestIgnoreAsGit(t *testing.T) {
	t.Parallel()
	tree := Tree{
		".gitignore":       file("# comment\n*.log\n!keep.log\n/build\nnode_modules/\ndocs/*.txt\na/**/z\n**/tmp\nout/**\n!out/keep\ntrailing  \n\\#hash\n\\!bang\n[ab].c\n{x}\n?.h\ndeep/\n!deep/in\n\\{q,r}\n[{]\n"),
		"sub/.gitignore":   file("!*.log\n/only\nmore/\n"),
		"sub/x/.gitignore": file("*\n!.gitignore\n"),
	}
	for _, name := range []string{
		"a.log", "keep.log", "sub/a.log", "sub/only", "sub/y/only", "sub/more/f", "sub/x/f", "build/f", "src/build/f", "node_modules/m/f", "src/node_modules/f",
		"docs/a.txt", "docs/b/a.txt", "a/z", "a/b/z", "a/b/c/z", "tmp/f", "w/tmp", "out/f", "out/keep", "out/d/f", "trailing", "#hash", "!bang", "a.c", "c.c", "{x}", "y.h", "yy.h", "deep/in", "é.log", "{q,r}", `\q`, "{",
	} {
		tree[name] = file("x")
	}
	compareWithGit(t, tree)
	r := rand.New(rand.NewPCG(3, 4))
	for range 12 {
		tree := Tree{}
		parts := []string{"a", "b", "ab", "*", "a*", "**", "?", "[a-b]", "c.d", "*.d"}
		pick := func(n int) string {
			var p []string
			for range 1 + r.IntN(3) {
				p = append(p, parts[r.IntN(n)])
			}
			return strings.Join(p, "/")
		}
		for _, dir := range []string{"", "a/", "b/a/"} {
			var b strings.Builder
			for range r.IntN(4) {
				b.WriteString([]string{"", "", "!", "/"}[r.IntN(4)] + pick(len(parts)) + []string{"", "", "/"}[r.IntN(3)] + "\n")
			}
			tree[dir+".gitignore"] = file(b.String())
		}
		for range 30 {
			name := strings.ReplaceAll(strings.ReplaceAll(pick(3), "*", "x"), "?", "y") + "/" + []string{"f", "c.d", "a", "b"}[r.IntN(4)]
			if !slices.ContainsFunc(slices.Collect(maps.Keys(tree)), func(k string) bool { return strings.HasPrefix(name, k+"/") || strings.HasPrefix(k, name+"/") }) {
				tree[name] = file("x")
			}
		}
		compareWithGit(t, tree)
	}
}

func compareWithGit(t *testing.T, tree Tree) {
	t.Helper()
	dir := put(t, tree)
	git := func(args ...string) string {
		cmd := exec.Command("git", args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_NOSYSTEM=1", "HOME="+dir, "XDG_CONFIG_HOME="+dir)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("git %q: %v", args, err)
		}
		return string(out)
	}
	git("init", "-q")
	untracked := strings.Split(git("ls-files", "--others", "--exclude-standard", "-z"), "\x00")
	var rules Ignorer
	for name, e := range tree {
		if path.Base(name) == IgnoreFile {
			rules.Add(path.Dir(name), string(e.Content))
		}
	}
	for name := range tree {
		if got, want := rules.Ignores(name), !slices.Contains(untracked, name); got != want {
			t.Errorf("%q is left out: %t, by Git: %t, with %q", name, got, want, rulesOf(tree))
		}
	}
}

func rulesOf(tree Tree) map[string]string {
	out := map[string]string{}
	for name, e := range tree {
		if strings.HasSuffix(name, ".gitignore") {
			out[name] = string(e.Content)
		}
	}
	return out
}

// TestIgnoreHasBounds: hostile rules have limited memory and time, and Err reports an exceeded limit.
func TestIgnoreHasBounds(t *testing.T) {
	t.Parallel()
	for name, fill := range map[string]func(*Ignorer){
		"files": func(g *Ignorer) {
			for i := range maxIgnoreFiles + 1 {
				g.Add(fmt.Sprint("d", i), "*.log\n")
			}
		},
		"bytes": func(g *Ignorer) { g.Add(".", strings.Repeat("# a comment\n", maxIgnoreBytes/12+1)) },
		"rules": func(g *Ignorer) {
			g.Add("a", strings.Repeat("x\n", maxIgnoreRules))
			g.Add("b", "x\n")
		},
		"a long rule": func(g *Ignorer) { g.Add(".", strings.Repeat("*a", maxRuleBytes)) },
		"matching": func(g *Ignorer) {
			g.Add(".", strings.Repeat("*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*a*b\n", maxIgnoreRules))
			for i := range 1000 {
				g.Ignores(strings.Repeat("a/", 20) + strings.Repeat("a", 200) + fmt.Sprint(i))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var g Ignorer
			if fill(&g); g.Err() == nil {
				t.Error("no error was reported")
			}
			if len(g.rules) > maxIgnoreFiles {
				t.Errorf("%d directories have rules", len(g.rules))
			}
		})
	}
	var g Ignorer // a large project with all dependencies
	g.Add(".", strings.Repeat("*.log\n/build/\nnode_modules/\n", 20))
	for i := range 50_000 {
		g.Ignores(fmt.Sprintf("src/some/package%d/directory/file%d.go", i%500, i))
	}
	must(t, g.Err())
}
