package frontmatter_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/frontmatter"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// TestHostile verifies that documents that try to exhaust a parser cause a typed error in less than a second and with
// less than 100 MB of memory. These limits are documented.
func TestHostile(t *testing.T) {
	bomb := func(width, depth int) string {
		var b strings.Builder
		b.WriteString("---\na0: &a0 [x]\n")
		for i := 1; i <= depth; i++ {
			prev := "*a" + string(rune('0'+i-1))
			b.WriteString("a" + string(rune('0'+i)) + ": &a" + string(rune('0'+i)) + " [" + strings.Repeat(prev+",", width) + "]\n")
		}
		return b.String() + "---\n"
	}
	var nestedBlock strings.Builder
	for i := range 2000 {
		nestedBlock.WriteString(strings.Repeat(" ", i%100) + "a:\n")
	}
	tests := map[string]struct{ src, want string }{
		"many values":        {"---\n" + manyKeys(6_000) + "---\n", "more than 5000 values"},
		"alias bomb":         {bomb(9, 9), "aliases are expanded"},
		"wide alias bomb":    {bomb(5000, 3), "aliases are expanded"},
		"quadratic aliases":  {"---\na: &a [" + strings.Repeat("x,", 5000) + "]\nb: [" + strings.Repeat("*a,", 5000) + "]\n---\n", "aliases are expanded"},
		"10k flow nesting":   {"---\na: " + strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000) + "\n---\n", "hostile.prompt:2"},
		"10k open flow":      {"---\na: " + strings.Repeat("{a: ", 10_000) + "\n---\n", "hostile.prompt:2"},
		"100 levels":         {"---\na: " + strings.Repeat("[", 100) + strings.Repeat("]", 100) + "\n---\n", "levels deep"},
		"many keys":          {"---\n" + strings.Repeat("a: 1\n", 2_000) + "---\n", "more problems"},
		"large frontmatter":  {"---\n" + strings.Repeat("# comment\n", 30_000) + "---\n", "the frontmatter is larger than 64 KiB"},
		"large file":         {"---\nsandbox: python\n---\n" + strings.Repeat("x", 1<<20), "the file is larger than 512 KiB"},
		"deep block":         {"---\n" + nestedBlock.String() + "---\n", "hostile.prompt:"},
		"long scalar":        {"---\nsandbox: " + strings.Repeat("x", 60_000) + "\n---\n", "unknown runtime"},
		"long unknown key":   {"---\nsandbox: {" + strings.Repeat("k", 900) + ": 1}\n---\n", "unknown key"},
		"anchors only":       {"---\n" + strings.Repeat("- &a x\n", 1_000) + "---\n", "must be a mapping"},
		"alias to ancestors": {"---\na: &a {b: &b {c: *a, d: *b}}\n---\n", "contains itself"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := frontmatter.Parse("hostile.prompt", []byte(tt.src))
			runtime.ReadMemStats(&after)
			var one *frontmatter.Error
			if !errors.As(err, &one) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %.300v, want one with %q", err, tt.want)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 100<<20 {
				t.Errorf("allocated %d MB", used>>20)
			}
		})
	}
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "k%d: v\n", i)
	}
	return b.String()
}

// TestLargeButLegal verifies that the largest allowed frontmatter is accepted. The limit exists because other parsers
// read the file afterwards.
func TestLargeButLegal(t *testing.T) {
	doc, err := frontmatter.Parse("large.prompt", []byte("---\nsandbox: python\n"+manyKeys(2_450)+"---\nbody"))
	if err != nil || doc.Sandbox == nil {
		t.Fatal(err)
	}
}

func TestReadFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	big, small := filepath.Join(dir, "big.prompt"), filepath.Join(dir, "small.prompt")
	checktest.Must(t, errors.Join(os.WriteFile(big, nil, 0o600), os.Truncate(big, 100<<20)))
	checktest.Must(t, os.WriteFile(small, []byte("hi"), 0o600))
	var one *frontmatter.Error
	if _, err := frontmatter.ReadFile(big); !errors.As(err, &one) || !strings.Contains(err.Error(), "larger than 512 KiB") {
		t.Errorf("100 MB file: %v", err)
	}
	if _, err := frontmatter.ReadFile(filepath.Join(dir, "none.prompt")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
	if got, err := frontmatter.ReadFile(small); err != nil || string(got) != "hi" {
		t.Errorf("small file: %q, %v", got, err)
	}
}
