package workflow_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/workflow"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// knownAgents returns the files of a few known agents.
func knownAgents(name string) (*frontmatter.Document, error) {
	switch name {
	case "known", "code-analyzer", "code-fixer", "test-runner":
		return nil, nil
	}
	return nil, errors.New("there is no file " + name + ".prompt")
}

// TestLoadErrors verifies the problems of each file in testdata/bad. Each file has a golden file.
func TestLoadErrors(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/bad/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			t.Parallel()
			_, err := workflow.Load(file, &workflow.LoadOptions{Agents: knownAgents})
			if _, ok := errors.AsType[frontmatter.Errors](err); !ok {
				t.Fatalf("Load = %v, want frontmatter.Errors", err)
			}
			got := strings.ReplaceAll(err.Error(), file, filepath.Base(file)) + "\n"
			golden := strings.TrimSuffix(file, ".yaml") + ".err"
			if *update {
				checktest.Must(t, os.WriteFile(golden, []byte(got), 0o644))
			}
			want, err := os.ReadFile(golden)
			checktest.Must(t, err)
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestLoadGood(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/good/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no files", err)
	}
	for _, file := range files {
		wf, err := workflow.Load(file, &workflow.LoadOptions{Agents: knownAgents})
		if err != nil {
			t.Errorf("Load(%s):\n%v", file, err)
			continue
		}
		if wf.Path != file || len(wf.Hash) != 64 {
			t.Errorf("%s: Path %q, Hash %q", file, wf.Path, wf.Hash)
		}
		if filepath.Base(file) != "spec.yaml" {
			continue
		}
		if wf.ID != "code-review-and-fix" || wf.Name != "Code review and fix" || wf.MaxSteps != 50 || wf.Timeout != 30*time.Minute {
			t.Errorf("loaded %q %q %d %s", wf.ID, wf.Name, wf.MaxSteps, wf.Timeout)
		}
		if diff := cmp.Diff([]string{"code-analyzer", "code-fixer", "test-runner"}, wf.Agents()); diff != "" {
			t.Errorf("agents (-want +got)\n%s", diff)
		}
	}
	if bare := parse(t, "steps: [{id: b, type: end}]\n"); bare.MaxSteps != 50 || bare.Timeout != time.Hour {
		t.Errorf("defaults %d %s", bare.MaxSteps, bare.Timeout)
	}
	if _, err := workflow.Load(filepath.Join(t.TempDir(), "nope.yaml"), nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Load of no file = %v", err)
	}
}

// TestLoadBombs verifies that files that are much more expensive to parse than to write are refused quickly.
func TestLoadBombs(t *testing.T) {
	t.Parallel()
	nested := strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)
	indented := &strings.Builder{}
	for i := range 1200 {
		fmt.Fprintf(indented, "%s- a:\n", strings.Repeat(" ", i))
	}
	var aliases strings.Builder
	aliases.WriteString("id: x\na0: &a0 {x: y}\n")
	for i := range 60 {
		fmt.Fprintf(&aliases, "a%d: &a%d {x: *a%d, y: *a%d}\n", i+1, i+1, i, i)
	}
	var chain strings.Builder
	chain.WriteString("id: x\na0: &a0 {x: y}\n")
	for i := range 60 {
		fmt.Fprintf(&chain, "a%d: &a%d {x: {x: *a%d}}\n", i+1, i+1, i)
	}
	manySteps := "id: a\nsteps:\n" + strings.Repeat("  - {id: a, type: end}\n", 600)
	for name, src := range map[string]string{
		"large":    "id: a\nname: " + strings.Repeat("x", 2<<20),
		"nested":   "id: a\nsteps: " + nested,
		"indented": indented.String(),
		"aliases":  aliases.String(),
		"chain":    chain.String(),
		"self":     "id: &a [*a]\nsteps: *a",
		"steps":    manySteps,
		"items":    "id: a\nsteps: [{id: f, type: for_each, steps: [{id: b, type: end}], items: [" + strings.Repeat("1,", 10_001) + "1]}]",
		"branches": "id: a\nsteps: [{id: f, type: parallel, branches: [" + strings.Repeat("{id: a, steps: [{id: a, type: end}]},", 65) + "]}]",
		"keys":     "id: a\n" + strings.Repeat("k: v\n", 100_000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := workflow.Parse("bomb.yaml", []byte(src), nil)
			var problems frontmatter.Errors
			if !errors.As(err, &problems) {
				t.Fatalf("Parse = %v", err)
			}
			if len(problems) > 51 {
				t.Errorf("%d problems", len(problems))
			}
		})
	}
}

// FuzzParse verifies that loading arbitrary bytes ends without a panic and that every problem has a position in the
// file.
func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/bad/*.yaml", "testdata/good/*.yaml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			src, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(src)
		}
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		wf, err := workflow.Parse("fuzz.yaml", src, &workflow.LoadOptions{Agents: knownAgents})
		if err == nil {
			if again, err := workflow.Parse("fuzz.yaml", src, nil); err != nil || !cmp.Equal(wf.Agents(), again.Agents()) || wf.Hash != again.Hash {
				t.Fatalf("the second load differs: %v", err)
			}
			return
		}
		var problems frontmatter.Errors
		if !errors.As(err, &problems) || len(problems) == 0 {
			t.Fatalf("Parse = %#v", err)
		}
		lines := strings.Count(string(src), "\n") + strings.Count(string(src), "\r") + strings.Count(string(src), "\u0085") +
			strings.Count(string(src), "\u2028") + strings.Count(string(src), "\u2029") + 2
		for _, p := range problems {
			if p.Line < 0 || p.Line > lines || p.Column < 0 || p.Message == "" {
				t.Fatalf("problem %#v in %d lines", p, lines)
			}
		}
	})
}

// TestWhatRunsFindOut verifies that problems outside the file are reported with their position in the file, both before
// a run and by a run.
func TestWhatRunsFindOut(t *testing.T) {
	t.Parallel()
	src := "id: w\nsandbox:\n  workspace: gone\n  user: \"0\"\nsteps:\n  - {id: a, type: end}\n"
	wf, err := workflow.Parse(filepath.Join(t.TempDir(), "w.yaml"), []byte(src), nil)
	checktest.Must(t, err)
	if err := wf.CheckWorkspace(t.Context()); err == nil || !strings.HasPrefix(err.Error(), wf.Path+":3:14: workspace "+wf.Workspace().Dir+": ") {
		t.Errorf("CheckWorkspace: %v", err)
	}
	if at := wf.AsRoot(); at == nil || at.Line != 4 || at.Column != 9 {
		t.Errorf("AsRoot: %v, want 4:9", at)
	}
	checktest.Must(t, os.Mkdir(wf.Workspace().Dir, 0o700))
	if err := wf.CheckWorkspace(t.Context()); err != nil {
		t.Errorf("CheckWorkspace of a directory: %v", err)
	}
	checktest.Must(t, errors.Join(os.Remove(wf.Workspace().Dir), os.Symlink(t.TempDir(), wf.Workspace().Dir)))
	if err := wf.CheckWorkspace(t.Context()); err == nil || !strings.Contains(err.Error(), ":3:14: ") || !strings.Contains(err.Error(), "leads outside") {
		t.Errorf("CheckWorkspace of a link that leads out: %v", err)
	}
}
