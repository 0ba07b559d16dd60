package patch

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/bluekeyes/go-gitdiff/gitdiff"
)

func file(content string) Entry   { return Entry{Mode: 0o644, Content: []byte(content)} }
func script(content string) Entry { return Entry{Mode: 0o755, Content: []byte(content)} }
func link(target string) Entry    { return Entry{Mode: fs.ModeSymlink, Content: []byte(target)} }

// put writes the tree into a new directory.
func put(t *testing.T, tree Tree) string {
	t.Helper()
	dir := t.TempDir()
	for name, e := range tree {
		at := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(at), 0o755))
		var err error
		if e.isLink() {
			err = os.Symlink(string(e.Content), at)
		} else {
			err = os.WriteFile(at, e.Content, e.Mode.Perm())
		}
		must(t, err)
	}
	return dir
}

// get returns the tree in dir with Git's modes. Other entries than files and links fail the test.
func get(t *testing.T, dir string) Tree {
	t.Helper()
	tree := Tree{}
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		if d.Type()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(at)
			tree[name] = link(target)
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		content, err := os.ReadFile(at)
		tree[name] = Entry{Mode: 0o644 | info.Mode()&0o111, Content: content}
		return err
	})
	must(t, err)
	return tree
}

// applied applies a patch and compares the result with an earlier Check, which must have written nothing.
func applied(t *testing.T, p *Patch, dir string) (Result, error) {
	t.Helper()
	before := get(t, dir)
	want, wantErr := p.Check(dir)
	if after := get(t, dir); !reflect.DeepEqual(before, after) {
		t.Errorf("Check wrote: %q", after)
	}
	got, err := p.Apply(dir)
	if !reflect.DeepEqual(want, got) || fmt.Sprint(wantErr) != fmt.Sprint(err) {
		t.Errorf("Apply: %+v, %v; Check: %+v, %v", got, err, want, wantErr)
	}
	return got, err
}

// TestCheck compares the results of Check and Apply for random directories and patches, even if files, directories, and
// links replace each other.
func TestCheck(t *testing.T) {
	t.Parallel()
	rnd := rand.New(rand.NewPCG(1, 2))
	names := []string{"a", "a/b", "a/b/c", "a/d", "e", "e/f", "g/HEAD", "g/refs/x", "g/objects/x", "h/i/j"}
	tree := func() Tree {
		tree := Tree{}
		for _, name := range names {
			above := func(n string) bool { return strings.HasPrefix(name, n+"/") }
			if slices.ContainsFunc(slices.Collect(maps.Keys(tree)), above) || rnd.IntN(2) == 0 {
				continue
			}
			switch kind := rnd.IntN(6); kind {
			case 0:
				tree[name] = link([]string{"e", "a/b", "../e", "..", "."}[rnd.IntN(5)])
			case 1:
				tree[name] = script("1\n2\n3\n4\n5\n")
			default:
				tree[name] = file([]string{"1\n2\n3\n4\n5\n", "one\n2\n3\n4\n5\n", "1\n2\n3\n4\nfive\n", "x\n"}[kind-2])
			}
		}
		return tree
	}
	for range 1000 {
		before := tree()
		mine := maps.Clone(before) // most of it as the patch knows it
		if rnd.IntN(2) == 0 {
			mine = tree()
		}
		p, dir := Compare(before, tree()), put(t, mine)
		if _, err := applied(t, p, dir); t.Failed() {
			t.Fatalf("%v: %q, %s in %q", err, before, format(t, p), mine)
		}
	}
}

func same(a, b Tree) bool { return len(Compare(a, b).Changes) == 0 }

func format(t *testing.T, p *Patch) string {
	t.Helper()
	var b bytes.Buffer
	must(t, p.Format(&b))
	return b.String()
}

func numbered(from, to int) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, "line %d\n", i)
	}
	return b.String()
}

// inserted is numbered(0, 999) with two insertions of 60 lines. Half of these lines are equal.
var inserted = numbered(0, 99) + strings.Repeat("}\nnew\n", 30) + numbered(99, 900) + strings.Repeat("}\nlast\n", 30) +
	numbered(900, 999)

// trees returns pairs of trees with every kind of change.
func trees() map[string][2]Tree {
	return map[string][2]Tree{
		"nothing":           {{"a": file("x")}, {"a": file("x")}},
		"edit":              {{"a": file(numbered(0, 40))}, {"a": file(strings.ReplaceAll(numbered(0, 40), "7", "seven"))}},
		"no newline at end": {{"a": file("x\ny"), "b": file("x"), "c": file("x\n")}, {"a": file("x\nz"), "b": file("x\n"), "c": file("x")}},
		"create":            {{}, {"a/b/c": file("x\n"), "empty": file(""), "run": script("#!/bin/sh\n"), "l": link("a/b")}},
		"delete":            {{"a/b/c": file("x\n"), "empty": file(""), "l": link("x"), "k": file("k")}, {"k": file("k")}},
		"mode":              {{"a": file("x\n"), "b": script("x\n")}, {"a": script("x\n"), "b": file("y\n")}},
		"binary":            {{"a": file("\x00\x01"), "gone": file("\x00"), "t": file("text\n")}, {"a": file("\x00\x02" + strings.Repeat("z", 1000)), "new": file("\x00new"), "t": file("\x00\n")}},
		"rename":            {{"a": file(numbered(0, 9)), "b": file("\x00same")}, {"d/a": file(numbered(0, 9)), "d/b": file("\x00same")}},
		"rename and edit":   {{"a": file(numbered(0, 9))}, {"b": script(numbered(1, 9))}},
		"link":              {{"l": link("a"), "f": file("x\n")}, {"l": link("b"), "f": file("x\n")}},
		"odd names":         {{"a b": file("1\n"), "é\t\"": file("1\n"), "-x": file("1\n")}, {"a b": file("2\n"), "é\t\"": file("2\n"), "-x": file("2\n"), "new\nline": file("3\n")}},
		"not UTF-8":         {{"a": file("\xff\nb\n")}, {"a": file("\xff\xfe\nb\n")}},
		"CRLF":              {{"a": file("x\r\ny\r\n")}, {"a": file("x\r\nz\r\n")}},
		"file to directory": {{"a": file("x\n")}, {"a/b": file("x\n")}},
		"directory to file": {{"a/b": file("x\n"), "a/c": file("y\n")}, {"a": file("x\n")}},
		"file to link":      {{"a": file(numbered(0, 9)), "b": script("\x00"), "r": file("x\n")}, {"a": link("b"), "b": link("r"), "r": file("x\n")}},
		"link to file":      {{"a": link("r"), "b": link("a"), "r": file("x\n")}, {"a": script("r"), "b": file("\x00"), "r": file("x\n")}},
		"directory to link": {{"a/b": file("x\n"), "a/c": file("y\n"), "r/b": file("x\n")}, {"a": link("r"), "r/b": file("x\n")}},
		"link to directory": {{"a": link("r"), "r": file("x\n")}, {"a/b": file("x\n"), "a/c": link("../r"), "r": file("x\n")}},
		"many lines":        {{"a": file(strings.Repeat("\n", maxTextLines)), "b": file("x\n")}, {"a": file(strings.Repeat("\n", maxTextLines+1)), "b": file(strings.Repeat("x\n", maxTextLines+1))}},
		"large text":        {{"a": file(strings.Repeat("x", maxTextBytes) + "\n")}, {"a": file(strings.Repeat("x", maxTextBytes) + "\ny\n"), "new": file(strings.Repeat("y\n\n", maxTextBytes/3+1))}},
		"to nothing":        {{"a": file("x\n")}, {"a": file("")}},
		"many insertions":   {{"a": file(numbered(0, 999))}, {"a": file(inserted)}},
	}
}

// TestGitApplies: both `git apply` of Format's output and Apply convert the first tree to the second.
func TestGitApplies(t *testing.T) {
	t.Parallel()
	cases := trees()
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 60 {
		cases[fmt.Sprint("random ", i)] = [2]Tree{randomTree(random), randomTree(random)}
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := Compare(c[0], c[1])
			text := format(t, p)
			if len(p.Changes) == 0 {
				if text != "" {
					t.Fatalf("the patch of no change is %q", text)
				}
				return
			}
			dir := put(t, c[0])
			git := exec.Command("git", "apply", "--whitespace=nowarn", "-")
			git.Dir, git.Stdin = dir, strings.NewReader(text)
			git.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir), "GIT_CONFIG_NOSYSTEM=1")
			if out, err := git.CombinedOutput(); err != nil {
				t.Fatalf("git apply: %v\n%s\n%s", err, out, text)
			}
			if got := get(t, dir); !same(got, c[1]) {
				t.Errorf("git apply made %q, want %q of\n%s", got, c[1], text)
			}
			dir = put(t, c[0])
			if r, err := applied(t, p, dir); err != nil || len(r.Conflicts) > 0 || len(r.Merged) > 0 {
				t.Fatalf("Apply: %v %v", r, err)
			}
			if got := get(t, dir); !same(got, c[1]) {
				t.Errorf("Apply made %q, want %q", got, c[1])
			}
			// Applying the patch again has no effect.
			if r, err := applied(t, p, dir); err != nil || len(r.Conflicts) > 0 && !strings.Contains(name, "directory") {
				t.Errorf("Apply again: %v %v", r, err)
			}
			if got := get(t, dir); !same(got, c[1]) {
				t.Errorf("Apply again made %q, want %q", got, c[1])
			}
		})
	}
}

func randomTree(r *rand.Rand) Tree {
	tree := Tree{}
	for i := range 12 {
		if r.IntN(3) == 0 {
			continue
		}
		var b strings.Builder
		for line := range r.IntN(60) {
			if r.IntN(6) > 0 {
				fmt.Fprintf(&b, "line %d", line)
			}
			b.WriteString([]string{"\n", "\n", "\n", "", "\r\n"}[r.IntN(5)])
		}
		if r.IntN(12) == 0 {
			b.WriteByte(0)
		}
		e := file(b.String())
		if r.IntN(4) == 0 {
			e.Mode = 0o755
		}
		tree[fmt.Sprintf("d%d/f%d", i%3, i)] = e
	}
	return tree
}

// TestApplyToWhatChanged: Apply overwrites no file changed since the creation of the patch.
func TestApplyToWhatChanged(t *testing.T) {
	t.Parallel()
	ten := numbered(0, 10)
	first, last := strings.Replace(ten, "line 0", "first", 1), strings.Replace(ten, "line 9", "last", 1)
	both := strings.Replace(first, "line 9", "last", 1)
	f, s := file, script
	for _, c := range []struct {
		name                string
		before, after       Tree
		meanwhile, want     Tree
		applied, merged, no []string
	}{
		{"apart", Tree{"a": f(ten)}, Tree{"a": f(first)}, Tree{"a": f(last)}, Tree{"a": f(both)}, nil, []string{"a"}, nil},
		{"apart, many lines", Tree{"a": f(numbered(0, 999))}, Tree{"a": f(inserted)},
			Tree{"a": f(strings.Replace(numbered(0, 999), "line 500\n", "", 1))},
			Tree{"a": f(strings.Replace(inserted, "line 500\n", "", 1))}, nil, []string{"a"}, nil},
		{"apart, keeping the mode", Tree{"a": f(ten)}, Tree{"a": f(first)}, Tree{"a": s(last)}, Tree{"a": s(both)}, nil, []string{"a"}, nil},
		{"the same already", Tree{"a": f(ten)}, Tree{"a": f(first)}, Tree{"a": f(first)}, Tree{"a": f(first)}, nil, nil, nil},
		{"merged already", Tree{"a": f(ten)}, Tree{"a": f(first)}, Tree{"a": f(both)}, Tree{"a": f(both)}, nil, nil, nil},
		{"the same line", Tree{"a": f(ten)}, Tree{"a": f(first)}, Tree{"a": f("mine" + ten[6:])}, Tree{"a": f("mine" + ten[6:])}, nil, nil, []string{"a"}},
		{"lines side by side", Tree{"a": f("1\n2\n")}, Tree{"a": f("1\ntwo\n")}, Tree{"a": f("one\n2\n")}, Tree{"a": f("one\n2\n")}, nil, nil, []string{"a"}},
		{"both added at the end", Tree{"a": f("1\n")}, Tree{"a": f("1\n2\n")}, Tree{"a": f("1\n3\n")}, Tree{"a": f("1\n3\n")}, nil, nil, []string{"a"}},
		{"binary", Tree{"a": f("\x001")}, Tree{"a": f("\x002")}, Tree{"a": f("\x003")}, Tree{"a": f("\x003")}, nil, nil, []string{"a"}},
		{"deleted by the patch, edited here", Tree{"a": f(ten)}, Tree{}, Tree{"a": f(last)}, Tree{"a": f(last)}, nil, nil, []string{"a"}},
		{"deleted here, edited by the patch", Tree{"a": f(ten)}, Tree{"a": f(first)}, Tree{}, Tree{}, nil, nil, []string{"a"}},
		{"created on both sides", Tree{}, Tree{"a": f("1")}, Tree{"a": f("2")}, Tree{"a": f("2")}, nil, nil, []string{"a"}},
		{"renamed, edited here", Tree{"a": f(ten)}, Tree{"b": f(first)}, Tree{"a": f(last)}, Tree{"a": f(last), "b": f(first)}, []string{"b"}, nil, []string{"a"}},
		{"renamed onto another", Tree{"a": f(ten)}, Tree{"b": f(ten)}, Tree{"a": f(ten), "b": f("x")}, Tree{"b": f("x")}, []string{"a"}, nil, []string{"b"}},
		{"a conflict keeps nothing else back", Tree{"a": f("1"), "b": f("1")}, Tree{"a": f("2"), "b": f("2")}, Tree{"a": f("x"), "b": f("1")}, Tree{"a": f("x"), "b": f("2")}, []string{"b"}, nil, []string{"a"}},
		{"other files", Tree{"a": f("1")}, Tree{"a": f("2")}, Tree{"a": f("1"), "mine": f("m")}, Tree{"a": f("2"), "mine": f("m")}, []string{"a"}, nil, nil},
		{"a link took its place", Tree{"a": f("1")}, Tree{"a": f("2")}, Tree{"a": link("b"), "b": f("1")}, Tree{"a": link("b"), "b": f("1")}, nil, nil, []string{"a"}},
		{"a directory took its place", Tree{"a": f("1")}, Tree{"a": f("2")}, Tree{"a/b": f("1")}, Tree{"a/b": f("1")}, nil, nil, []string{"a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir := put(t, c.meanwhile)
			r, err := applied(t, Compare(c.before, c.after), dir)
			must(t, err)
			var conflicts []string
			for _, k := range r.Conflicts {
				conflicts = append(conflicts, k.Path)
			}
			if got := get(t, dir); !same(got, c.want) {
				t.Errorf("the directory has %q, want %q", got, c.want)
			}
			if !reflect.DeepEqual([][]string{r.Applied, r.Merged, conflicts}, [][]string{c.applied, c.merged, c.no}) ||
				(c.applied == nil && c.merged == nil && c.no == nil) != (len(r.Unchanged) > 0) {
				t.Errorf("the result is %+v", r)
			}
		})
	}
}

// TestApplyMarked: conflict markers enclose both versions of the lines changed by both sides, and a file with markers
// is left unchanged.
func TestApplyMarked(t *testing.T) {
	t.Parallel()
	for was, want := range map[string]string{
		"1\nmine\n3\n4\n5\n": "1\n<<<<<<< directory\nmine\n=======\ntwo\n>>>>>>> patch\n3\n4\nfive\n",
		"1\n3\n4\n5\n6\n":    "1\n<<<<<<< directory\n=======\ntwo\n>>>>>>> patch\n3\n4\n<<<<<<< directory\n5\n6\n=======\nfive\n>>>>>>> patch\n",
		"1\ntwo\n3\n4\n5":    "1\ntwo\n3\n4\n<<<<<<< directory\n5\n=======\nfive\n>>>>>>> patch\n",
	} {
		dir := put(t, Tree{"a": file(was), "b": file("\x00mine"), "c": file("1\n")})
		before := Tree{"a": file("1\n2\n3\n4\n5\n"), "b": file("\x00"), "c": file("1\n")}
		p := Compare(before, Tree{"a": file("1\ntwo\n3\n4\nfive\n"), "b": file("\x00theirs"), "c": file("2\n")})
		r, err := p.ApplyMarked(dir)
		again, errAgain := p.ApplyMarked(dir)
		if err != nil || !slices.Equal(r.Marked, []string{"a"}) || len(r.Conflicts) != 1 || !slices.Equal(r.Applied, []string{"c"}) {
			t.Errorf("%q: %+v, %v", was, r, err)
		}
		if errAgain != nil || len(again.Conflicts) != 2 || len(again.Unchanged) != 1 {
			t.Errorf("%q, the second time: %+v, %v", was, again, errAgain)
		}
		if got := get(t, dir); !same(got, Tree{"a": file(want), "b": file("\x00mine"), "c": file("2\n")}) {
			t.Errorf("%q: the directory has %q", was, got)
		}
	}
}

// TestApplyStaysInside: a patch from untrusted code writes nothing outside the directory and nothing that runs on the
// host.
func TestApplyStaysInside(t *testing.T) {
	t.Parallel()
	for _, path := range []string{
		"../out", "/abs/out", "a/../../out", "link/out", "dirlink/out", "", ".", "a/./b", "a//b",
		".git/hooks/pre-commit", "sub/.git/config", ".GIT/config", ".git./config", ".git /x", "git~1/x", ".g\u200cit/config", ".git::$INDEX_ALLOCATION/x", ".git",
	} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			above := t.TempDir()
			dir, out := filepath.Join(above, "dir"), filepath.Join(above, "elsewhere")
			for _, d := range []string{dir, out, filepath.Join(dir, "real")} {
				must(t, os.Mkdir(d, 0o755))
			}
			for name, target := range map[string]string{"link": out, "dirlink": "real"} {
				must(t, os.Symlink(target, filepath.Join(dir, name)))
			}
			before := get(t, above)
			for _, e := range []Entry{file("x"), link("/etc/passwd")} {
				p := &Patch{Changes: []Change{{Path: path, New: &e}, {Path: path, Old: &e, New: &e}}}
				if r, err := applied(t, p, dir); err != nil || len(r.Conflicts) != 2 {
					t.Errorf("%v %v", r, err)
				}
			}
			if after := get(t, above); !same(before, after) {
				t.Errorf("written: %q", after)
			}
		})
	}
	for _, target := range []string{"/etc/passwd", "../../x", "a/../../x"} {
		e := link(target)
		p := &Patch{Changes: []Change{{Path: "d/l", New: &e}}}
		if r, err := applied(t, p, t.TempDir()); err != nil || len(r.Conflicts) == 0 && target != "a/../../x" {
			t.Errorf("a link to %s: %v %v", target, r, err)
		}
	}
}

// TestRepositories: Apply detects repositories by their files, whatever the directory's name, because Git would run
// programs from their configuration. Nothing is written into a repository, in any order of changes. Directories that
// only look similar are written.
func TestRepositories(t *testing.T) {
	t.Parallel()
	mine := Tree{
		"bare/HEAD": file("ref: refs/heads/main\n"), "bare/objects/x": file(""), "bare/refs/x": file(""),
		"half/objects/x": file(""), "half/refs/x": file(""),
	}
	for name, test := range map[string]struct {
		files   []string
		refused int
	}{
		"a new one":           {[]string{"r/HEAD", "r/config", "r/objects/x", "r/refs/x", "beside"}, 4},
		"of other letters":    {[]string{"d/r/head", "d/R/Objects./x", "D/r/REFS/x", "d/f"}, 3},
		"with another's":      {[]string{"w/HEAD", "w/commondir", "w/config"}, 3},
		"the directory":       {[]string{"HEAD", "objects/x", "refs/x", "f"}, 4},
		"the last of it":      {[]string{"half/HEAD", "half/f"}, 2},
		"an existing one":     {[]string{"bare/config", "bare/hooks/pre-commit"}, 2},
		"what only resembles": {[]string{"r/HEAD", "r/objects/x", "s/refs/x", "HEAD", "config"}, 0},
	} {
		p, tree := &Patch{}, Tree{}
		for _, f := range test.files {
			tree[f] = file("x")
			p.Changes = append(p.Changes, Change{Path: f, New: new(file("x"))})
		}
		patched, err := applied(t, p, put(t, mine))
		written, writeErr := tree.Write(put(t, mine), nil, false)
		refused := [2]int{len(patched.Conflicts), len(written.Conflicts)}
		if err != nil || writeErr != nil || refused != [2]int{test.refused, test.refused} {
			t.Errorf("%s: applied %v, %v; written %v, %v", name, patched, err, written, writeErr)
		}
	}
}

// TestManyLines: files with very many lines, or with noise, need no more memory than their size. They are not merged.
func TestManyLines(t *testing.T) { // not parallel, because it counts the process's allocations
	lines := bytes.Repeat([]byte("\n"), 100<<20)
	now := Entry{Mode: 0o644, Content: lines}
	noise := make([]byte, 16<<20)
	r := rand.NewChaCha8([32]byte{})
	r.Read(noise)                       //nolint:errcheck // never fails
	noise = append([]byte{0}, noise...) // cannot be compressed
	p := Compare(Tree{"a": file("1\n2\n3\n"), "gone": {Mode: 0o644, Content: lines[1:]}}, Tree{"a": now, "new": {Mode: 0o644, Content: lines[2:]}, "noise": {Mode: 0o644, Content: noise}})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	stat := p.Stat()
	must(t, p.Format(io.Discard))
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
		t.Errorf("%d MiB were allocated", used>>20)
	}
	if want := (Stat{Files: 4}); stat != want {
		t.Errorf("%+v, want %+v", stat, want)
	}
	dir := put(t, Tree{"a": file("1\n2\nmine\n")})
	if r, err := p.Apply(dir); err != nil || len(r.Conflicts) != 1 || r.Conflicts[0].Path != "a" {
		t.Errorf("%+v %v", r, err)
	}
}

// TestTypeChange: a file turned into a link is deleted and created, as in Git's format.
func TestTypeChange(t *testing.T) {
	t.Parallel()
	text := format(t, Compare(Tree{"a": script("x\n")}, Tree{"a": link("b")}))
	want := "diff --git a/a b/a\ndeleted file mode 100755\nindex " + (&Entry{Content: []byte("x\n")}).objectID() + ".." + strings.Repeat("0", 40) +
		"\n--- a/a\n+++ /dev/null\n@@ -1,1 +0,0 @@\n-x\ndiff --git a/a b/a\nnew file mode 120000\nindex " + strings.Repeat("0", 40) + ".." +
		(&Entry{Content: []byte("b")}).objectID() + "\n--- /dev/null\n+++ b/a\n@@ -0,0 +1,1 @@\n+b\n\\ No newline at end of file\n"
	if text != want {
		t.Errorf("%s\nwant\n%s", text, want)
	}
}

// TestStat: lines are counted like in Git.
func TestStat(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		want string
	}{
		{"edit", "1 file changed, 4 insertions(+), 4 deletions(-)"},
		{"create", "4 files changed, 3 insertions(+)"},
		{"mode", "2 files changed, 1 insertion(+), 1 deletion(-)"},
		{"binary", "4 files changed, 0 insertions(+), 0 deletions(-)"},
		{"rename", "4 files changed, 9 insertions(+), 9 deletions(-)"},
		{"many insertions", "1 file changed, 120 insertions(+)"},
	} {
		trees := trees()[c.name]
		if got := Compare(trees[0], trees[1]).Stat().String(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// FuzzFormat: the formatted patch can be parsed and has the same contents.
func FuzzFormat(f *testing.F) {
	f.Add("a", "x\ny", "x\nz", true)
	f.Add("a b\t", "", "\x00", false)
	f.Fuzz(func(t *testing.T, name, old, now string, run bool) {
		if !fs.ValidPath(name) || name == "." || strings.ContainsRune(name, 0) || old == now {
			return
		}
		if strings.HasSuffix(name, `\`) { // go-gitdiff mistakes it for an escaped quotation mark
			return
		}
		after := file(now)
		if run {
			after.Mode = 0o755
		}
		var b bytes.Buffer
		must(t, Compare(Tree{name: file(old)}, Tree{name: after}).Format(&b))
		files, _, err := gitdiff.Parse(&b)
		if err != nil || len(files) != 1 {
			t.Fatalf("%d files, %v", len(files), err)
		}
		var got bytes.Buffer
		must(t, gitdiff.Apply(&got, strings.NewReader(old), files[0]))
		if got.String() != now || files[0].NewName != name {
			t.Errorf("%q became %q, want %q", files[0].NewName, got.String(), now)
		}
	})
}
