package main

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestNeutralise(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain text, ünï, 日本\n\ttab": "plain text, ünï, 日本\n\ttab",
		"\x1b[31mred\x1b[0m":         `\x1b[31mred\x1b[0m`,
		"\x1b]0;title\a":             `\x1b]0;title\x07`,
		"over\rwrite":                `over\x0dwrite`,
		"bad \xff byte":              `bad \xff byte`,
		"a\u202eb\u200bc\u0085":      `a\u202eb\u200bc\u0085`,
		"nul\x00del\x7f":             `nul\x00del\x7f`,
	} {
		if got := neutralise(in); got != want {
			t.Errorf("neutralise(%q) = %q, want %q", in, got, want)
		}
	}
	if got, want := oneLine("a\nb\tc"), `a\nb\tc`; got != want {
		t.Errorf("oneLine = %q, want %q", got, want)
	}
}

func FuzzNeutralise(f *testing.F) {
	f.Add("\x1b[2J\xc2\x9b31m")
	f.Fuzz(func(t *testing.T, in string) {
		out := neutralise(in)
		if !utf8.ValidString(out) || strings.ContainsAny(out, "\x1b\r\x00\x7f\u009b") {
			t.Fatalf("neutralise(%q) = %q", in, out)
		}
	})
}

func TestClip(t *testing.T) {
	t.Parallel()
	if got := clip("héllo", 5); got != "héllo" {
		t.Errorf("clip = %q", got)
	}
	if got := clip("héllo!", 5); got != "héll…" {
		t.Errorf("clip = %q", got)
	}
}
