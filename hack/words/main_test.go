package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/internal/checktest"
)

var must = checktest.Must

const tree = "testdata/tree"

// TestFindings verifies what counts as prose, and which phrases and lines are found.
func TestFindings(t *testing.T) {
	t.Parallel()
	want := []string{
		"sub/code.go:14: long",
		"page.md:9: W03", "page.md:11: W01", "page.md:12: W10", "page.md:14: W01", "page.md:14: W01",
		"sub/code.go:1: W03", "sub/code.go:12: W01", "sub/code.go:12: W03",
	}
	page, sub := want[1:6], slices.Concat(want[:1], want[6:])
	for list, want := range map[string][]string{
		"./...": want, ".": page, "page.md": page, "sub": sub, "sub/...": sub, "p": nil,
	} {
		var out bytes.Buffer
		if code := run([]string{tree, "list", list}, &out, os.Stderr); code != 0 {
			t.Fatalf("list %s: exit code %d", list, code)
		}
		var got []string
		for line := range strings.Lines(out.String()) {
			got = append(got, strings.Join(strings.Fields(line)[:2], " "))
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("list %s (-want +got):\n%s", list, diff)
		}
	}
}

// TestBudget: counts may neither rise nor stay below their budget, and exceptions require a reason.
func TestBudget(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	must(t, os.CopyFS(root, os.DirFS(tree)))
	page := filepath.Join(root, "page.md")
	whole, err := os.ReadFile(page)
	must(t, err)
	excused := strings.Replace(string(whole), "words:ok -->", "words:ok a reason -->", 1)
	for _, step := range []struct {
		name, page string
		args       []string
		want       []string // parts of the problems
	}{
		{"no budget", string(whole), nil, []string{"budget.txt: no such file"}},
		{"missing reason", string(whole), []string{"write"}, []string{"page.md:22: exception without"}},
		{"same counts", excused, nil, nil},
		{"more", excused + "\nFor somebody.\n", nil, []string{".: 6 phrases, at most 5 are allowed"}},
		{"fewer", "nothing\n", nil, []string{".: 0 phrases, but 5 are allowed"}},
		{"lowered", "nothing\n", []string{"write"}, nil},
		{"profile", strings.Repeat("A list; a list.\n", 9), nil, []string{"docs semicolons per 100,000, was 0"}},
		{"many exceptions", strings.Repeat("x <!-- words:ok reason -->\n", 21), nil, []string{"22 exceptions: at most 20"}},
	} {
		must(t, os.WriteFile(page, []byte(step.page), 0o600))
		var out, errs bytes.Buffer
		code := run(append([]string{root}, step.args...), &out, &errs)
		lines := strings.Split(strings.TrimSpace(errs.String()), "\n")
		if step.want == nil {
			step.want = []string{""}
		}
		if code != min(len(errs.Bytes()), 1) || !slices.EqualFunc(lines, step.want, strings.Contains) {
			t.Errorf("%s: exit code %d, want %q, got:\n%s", step.name, code, step.want, &errs)
		}
	}
}

// TestSubjects verifies the form of commit subjects.
func TestSubjects(t *testing.T) {
	t.Parallel()
	bans, err := readBans("banned.tsv")
	must(t, err)
	data, err := os.ReadFile("testdata/subjects.txt")
	must(t, err)
	for line := range strings.Lines(string(data)) {
		want, line, _ := strings.Cut(strings.TrimSpace(line), "\t")
		if problem := checkSubject(line, bans); (problem == "") != (want == "good") {
			t.Errorf("%q is %s, got problem %q", line, want, problem)
		}
	}
}

// TestCommits: only commits after the one that added the check count, and a commit can be excused.
func TestCommits(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	git := func(args ...string) string {
		args = append([]string{"-C", root, "-c", "user.name=x", "-c", "user.email=x@x"}, args...)
		out, err := exec.Command("git", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q", "-b", "main")
	git("commit", "-q", "--allow-empty", "-m", "Old form")
	must(t, os.MkdirAll(filepath.Join(root, folder), 0o700))
	must(t, os.WriteFile(filepath.Join(root, folder, "main.go"), []byte("package main\n"), 0o600))
	git("checkout", "-q", "-b", "side")
	git("commit", "-q", "--allow-empty", "-m", "Side without the check")
	git("checkout", "-q", "main")
	git("add", ".")
	git("commit", "-q", "-m", "Add the check")
	git("merge", "-q", "-m", "Merge side", "side")
	git("commit", "-q", "--allow-empty", "-m", "docs: describe the check")
	git("commit", "-q", "--allow-empty", "-m", "Bad form")
	problems, err := checkCommits(root, nil, nil)
	if err != nil || len(problems) != 1 || !strings.Contains(problems[0], "Bad form") {
		t.Errorf("got %q, %v, want the last commit", problems, err)
	}
	problems, err = checkCommits(root, nil, []string{"commit " + git("rev-parse", "--short", "HEAD") + " it is published"})
	if err != nil || len(problems) > 0 {
		t.Errorf("got %q, %v, want nothing", problems, err)
	}
}
