//go:build linux

package output

import (
	"bytes"
	"regexp"
	"testing"
)

// TestReplay verifies that replayed output contains no queries and no control sequences other than display sequences.
func TestReplay(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain\r\nü\x01\t": "plain\r\nü\x01\t",
		"\x1b[31mred\x1b[0m \x1b[2J\x1b[?25l\x1b[?1049h\x1b[3;4Hx": "\x1b[31mred\x1b[0m \x1b[2J\x1b[?25l\x1b[?1049h\x1b[3;4Hx",
		"a\x1b[6nb\x1b[?6nc\x1b[cd\x1b[>ce\x1b[=0cf":               "abcdef",
		"a\x1b[?2026$pb\x1b[>qc\x1b[18td\x1b[xe\x1bZf\x05g":        "abcdefg",
		"a\x1b[?ub\x1b[sc\x1b[ud":                                  "ab\x1b[sc\x1b[ud",
		"a\x1b]0;title\ab\x1b]52;c;?\x1b\\c\x1bP$qm\x1b\\d":        "abcd",
		"a\x1b_x\x1b\\b\x1b^y\x1b\\c\x1bXz\x1b\\d":                 "abcd",
		"a\x1b\x1b[6nb\x1b[1\x1b[6nc\x1b\x05[6nd\x1b\x7f[ce":       "abc[6nd\x7f[ce",
		"a\x1b(\x1b[cb\u009b6nc\x1b[1;1;1;1;1;1*yd\x1b[?1;1Se":     "a\x1b(b6ncde",
		"a\x1b7\x1b8\x1b(B\x1bcb":                                  "a\x1b7\x1b8\x1b(B\x1bcb",
		"cut\x1b]0;ti":                                             "cut",
		"cut\x1b[3":                                                "cut",
		"cut\x1b":                                                  "cut\x1b",
		"":                                                         "",
	} {
		if got := replay([]byte(in), false); string(got) != want {
			t.Errorf("%q: got %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{"half\na\nb": "a\nb", "one line": "one line", "\n": ""} {
		if got := replay([]byte(in), true); string(got) != want {
			t.Errorf("%q, cut: got %q, want %q", in, got, want)
		}
	}
}

// query matches queries in text from which the ignored characters within sequences were removed.
const query = `\x05|\x1bZ|\x1b\[[^\x1b@-~]*[cnpqtxy|]|\x1b\[[<-?][^\x1b@-~]*[uS]`

// FuzzReplay verifies that replay does not panic on any output, adds nothing to it, and removes all queries.
func FuzzReplay(f *testing.F) {
	asks := regexp.MustCompile(query)
	passedOver := func(r rune) rune {
		if r != 0x05 && r != 0x1b && (r < ' ' || r > '~') {
			return -1
		}
		return r
	}
	f.Add([]byte("\x1b\x1b[6n\x1b[1\x1b[6n\x1b(\x1b[c\x1b\n[6n\x1b\u00fc[6n"), false)
	f.Add([]byte("a\x1b[6n\x1b]0;t\a\x1bP+q\x1b\\\x1b[1"), true)
	f.Fuzz(func(t *testing.T, in []byte, cut bool) {
		out := replay(in, cut)
		rest := in
		for _, c := range out {
			i := bytes.IndexByte(rest, c)
			if i < 0 {
				t.Fatalf("%q became %q", in, out)
			}
			rest = rest[i+1:]
		}
		if q := asks.Find(bytes.Map(passedOver, out)); q != nil {
			t.Fatalf("%q became %q, which asks %q", in, out, q)
		}
	})
}
