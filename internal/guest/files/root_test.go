//go:build linux

package files

import "testing"

func TestRelativePaths(t *testing.T) {
	t.Parallel()
	r := &root{dir: "/workspace"}
	for in, want := range map[string]string{
		".": ".", "a": "a", "a/b/": "a/b", "./a//b": "a/b", "a/..": ".", "a/../b": "b", "/workspace": ".", "/workspace/": ".",
		"/workspace/a": "a", "//workspace//a": "a", "/workspace/../workspace/a": "a", "...": "...", "..a": "..a", `..\x`: `..\x`, "%2e%2e": "%2e%2e",
		"": "!", "..": "!", "../a": "!", "a/../..": "!", "/": "!", "/workspace-evil/a": "!", "/workspacea": "!", "/etc/passwd": "!",
		"/workspace/../etc": "!", "/proc/self/root/workspace/a": "!", "a\x00b": "!",
	} {
		got, err := r.rel(in)
		if err != nil {
			got = "!"
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	if got, err := (&root{dir: "/"}).rel("/etc/x"); err != nil || got != "etc/x" {
		t.Errorf("below /: %q, %v", got, err)
	}
}

func FuzzRelativePaths(f *testing.F) {
	for _, s := range []string{".", "a/../..", "/workspace/x", "/workspace/../etc", "//", "\xff/..", "a/./b"} {
		f.Add(s)
	}
	r := &root{dir: "/workspace"}
	f.Fuzz(func(t *testing.T, p string) {
		rel, err := r.rel(p)
		if err != nil {
			return
		}
		if rel == "" || rel[0] == '/' || rel == ".." || len(rel) > 2 && rel[:3] == "../" {
			t.Fatalf("%q became %q", p, rel)
		}
		if again, err := r.rel(rel); err != nil || again != rel {
			t.Fatalf("%q became %q and that %q, %v", p, rel, again, err)
		}
		if abs, err := r.rel("/workspace/" + rel); err != nil || abs != rel {
			t.Fatalf("%q as an absolute path became %q, %v", rel, abs, err)
		}
	})
}
