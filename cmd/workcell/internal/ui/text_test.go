package ui_test

import (
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/ui"
	"github.com/workcell-dev/workcell/patch"
)

// TestScreen verifies that colors, carriage returns, and backspaces apply, and all other control characters are
// visible text.
func TestScreen(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][]string{
		"one\ntwo":                           {"one", "two"},
		"10%\r99%\n":                         {"99%"},
		"a\r\nb\r\n":                         {"a", "b"},
		"typo\b\bed\n":                       {"tyed"},
		"\x1b[1;31mbad\x1b[0m ok":            {"[f1 bo]bad ok"},
		"\x1b[38;5;196mx\x1b[48;2;0;0;0my":   {"[f1]x[f1 b0]y"},
		"\x1b[mplain\x1b[1;96mu\x1b[22;39mv": {"plain[f6 bo]uv"},
		"\x1b]0;title\x07\x1b[2J\x1b[31":     {`\x1b]0;title\x07\x1b[2J`},
		"nul\x00 bad\xff bidi\u202e":         {`nul\x00 bad\xff bidi\u202e`},
		"\x1b[" + strings.Repeat("1;", 99):   {`\x1b[` + strings.Repeat("1;", 99)},
	} {
		if got := ui.Screen(in); !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
		var bytes []string
		for i := range len(in) {
			bytes = append(bytes, in[i:i+1])
		}
		if got := ui.Screen(bytes...); !slices.Equal(got, want) {
			t.Errorf("%q in parts: %q, want %q", in, got, want)
		}
	}
}

func FuzzScreen(f *testing.F) {
	f.Add("\x1b[31mred\x1b[0m\r\n\xe2\x80", "\xae\b\x1b", 3)
	f.Fuzz(func(t *testing.T, one, two string, _ int) {
		for _, l := range ui.Screen(one, two) {
			if !utf8.ValidString(l) || strings.ContainsAny(l, "\x00\x07\x1b\r\b\x7f\u202e\u009b") {
				t.Fatalf("%q, %q: %q", one, two, l)
			}
		}
	})
}

// TestMarks verifies that changed lines are marked where they differ.
func TestMarks(t *testing.T) {
	t.Parallel()
	p := patch.Compare(patch.Tree{"f": file("same\nsum(a)\nitems[1:]\ngone\nx\nend\nold")},
		patch.Tree{"f": file("same\nsum(b)\nitems\nx\nmore\nend\nold\n")})
	want := []string{
		"1 1 same[]", "2 0 delsum([a])", "3 0 delitems[[1:]]", "4 0 delgone[]",
		"0 2 addsum([b])", "0 3 additems[]", "5 4 x[]", "0 5 addmore[]",
		"6 6 end[]", "7 0 delold[] (no newline at the end of the file)", "0 7 addold[]",
	}
	if diff := cmp.Diff(want, ui.Marks(p.Changes[0].Hunks()[0])); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}
