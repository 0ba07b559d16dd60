package ui_test

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/cmd/workcell/internal/ui"
	"github.com/workcell-dev/workcell/sandbox"
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

// TestLongLine verifies that output without line feeds does not become one line of any length.
func TestLongLine(t *testing.T) {
	t.Parallel()
	if lines := ui.Screen(strings.Repeat("x", 1<<20)); len(lines) != 128 || len(lines[0]) != 8<<10 {
		t.Errorf("%d lines, the first has %d bytes", len(lines), len(lines[0]))
	}
}

// TestEndlessOutput verifies that the page of a command that writes all the time has an end.
func TestEndlessOutput(t *testing.T) {
	t.Parallel()
	var seq int64
	shown, cut, err := ui.Output(func(context.Context, sandbox.ReadRequest) (sandbox.ReadResult, error) {
		if seq++; seq > 1000 {
			return sandbox.ReadResult{}, errors.New("too many reads")
		}
		chunk := sandbox.Chunk{Seq: seq, Stream: "stdout", Data: bytes.Repeat([]byte("y\n"), 2<<10)}
		return sandbox.ReadResult{Chunks: []sandbox.Chunk{chunk}, NextSeq: seq}, nil
	})
	if err != nil || shown != 5000 || shown+cut != 1<<19 {
		t.Errorf("%d lines, %d hidden, %v", shown, cut, err)
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
