package tools

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
)

// replaceAll replaces all occurrences of a text.
func replaceAll(file []byte, old, with string) (data []byte, lines []int64, err error) {
	s := findText(file, old)
	data, err = s.Replace(with, 1<<24)
	return data, s.Lines(20), err
}

func TestReplaceText(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		text, old, with string
		want            string
		lines           string
	}{
		"a word":                    {"one two\nthree\n", "three", "3", "one two\n3\n", "[2]"},
		"several lines":             {"a\nb\nc\nd\n", "b\nc\n", "x\ny\nz\n", "a\nx\ny\nz\nd\n", "[2]"},
		"deletes":                   {"a\nb\n", "b\n", "", "a\n", "[2]"},
		"everything":                {"abc", "abc", "", "", "[1]"},
		"no regular expression":     {"a.b\naxb\n", "a.b", `$1\0`, "$1\\0\naxb\n", "[1]"},
		"all":                       {"x x\nx\n", "x", "yy", "yy yy\nyy\n", "[1 1 2]"},
		"all, of one":               {"x\n", "x", "y", "y\n", "[1]"},
		"all, without overlaps":     {"aaaa", "aa", "b", "bb", "[1 1]"},
		"CRLF, old and new with LF": {"a\r\nb\r\nc\r\n", "a\nb", "1\n2\n3", "1\r\n2\r\n3\r\nc\r\n", "[1]"},
		"CRLF, new lines in one":    {"a\r\nb\r\n", "b", "1\n2", "a\r\n1\r\n2\r\n", "[2]"},
		"CRLF, a line end":          {"a\r\nb\r\n", "a\n", "a\n\n", "a\r\n\r\nb\r\n", "[1]"},
		"CRLF, begins with one":     {"a\r\nb\r\n", "\nb", "", "a\r\n", "[1]"},
		"CRLF throughout":           {"a\r\nb\r\n", "a\r\nb", "c\r\nd", "c\r\nd\r\n", "[1]"},
		"LF, old and new with CRLF": {"a\nb\n", "a\r\nb", "c\r\nd", "c\nd\n", "[1]"},
		"mixed, the place decides":  {"a\r\nb\nc\n", "a\nb", "x\ny", "x\r\ny\nc\n", "[1]"},
		"mixed, the rest is kept":   {"a\r\nb\nc\r\n", "b", "x\ny", "a\r\nx\r\ny\nc\r\n", "[2]"},
		"no line end to go by":      {"ab", "b", "1\r\n2", "a1\r\n2", "[1]"},
		"a lone CR is a character":  {"a\rb\n", "\rb", "c", "ac\n", "[1]"},
		"other bytes stay":          {"\xff\x00a\xfe", "a", "ä", "\xff\x00ä\xfe", "[1]"},
	} {
		got, lines, err := replaceAll([]byte(tt.text), tt.old, tt.with)
		if err != nil || string(got) != tt.want || fmt.Sprint(lines) != tt.lines {
			t.Errorf("%s: %q at lines %v, want %q at %s; %v", name, got, lines, tt.want, tt.lines, err)
		}
	}
}

func TestFindText(t *testing.T) {
	t.Parallel()
	file := []byte("if a:\r\n    b()\r\n\r\nif c:\n\tb()\n")
	for text, want := range map[string]struct {
		count int
		lines string
		near  int
	}{
		"b()":                  {2, "[2 5]", 0},
		"if":                   {2, "[1 4]", 0},
		"if c:\n    b()":       {0, "[]", 4},
		"\nif a:\n\tb()\n\n\n": {0, "[]", 1},
		"nothing":              {0, "[]", 0},
		" \n\t\n":              {0, "[]", 0},
		"\n":                   {5, "[1 2 3]", 0},
	} {
		s := findText(file, text)
		if s.Count() != want.count || fmt.Sprint(s.Lines(3)) != want.lines || want.count == 0 && s.Near() != want.near {
			t.Errorf("%q: %d times, at lines %v, near %d; want %+v", text, s.Count(), s.Lines(3), s.Near(), want)
		}
	}
}

// TestReplaceTextTooLarge verifies that results are limited, and that millions of matches need no memory.
func TestReplaceTextTooLarge(t *testing.T) {
	many := bytes.Repeat([]byte("a"), 1<<20)
	if n := testing.AllocsPerRun(1, func() { findText(many, "a").Lines(1) }); n > 9 {
		t.Errorf("%v allocations", n)
	}
	s := findText([]byte("aaaa"), "a")
	if got, err := s.Replace("bb", 8); err != nil || len(got) != 8 {
		t.Errorf("%q, %v", got, err)
	}
	for _, limit := range []int{0, 7} {
		if _, err := s.Replace("bb", limit); !errors.Is(err, errTextTooLarge) {
			t.Errorf("a limit of %d: %v", limit, err)
		}
	}
	if _, err := s.Replace(strings.Repeat("b", 1<<20), 1<<20); !errors.Is(err, errTextTooLarge) {
		t.Error(err)
	}
}

// FuzzReplaceText verifies that an edit equals replacing all occurrences, except for line ends. It also verifies that a
// file with one kind of line ends keeps it.
func FuzzReplaceText(f *testing.F) {
	for _, seed := range [][3]string{{"a\r\nb\r\n", "a\nb", "x\ny"}, {"a\nb", "\n", "\r\n"}, {"aaa", "aa", ""}, {"\r\n\r\n", "\n", "x"}, {"\xff\r\n", "\n", "\n\n"}} {
		f.Add([]byte(seed[0]), seed[1], seed[2])
	}
	plain := func(s string) string { return strings.ReplaceAll(s, "\r\n", "\n") }
	f.Fuzz(func(t *testing.T, text []byte, old, with string) {
		if old == "" || strings.Contains(plain(string(text))+plain(old)+plain(with), "\r") || len(text)*len(with) > 1<<20 {
			return // nothing to find, or a CR that is not part of a line end
		}
		got, lines, err := replaceAll(text, old, with)
		if err != nil {
			t.Fatal(err)
		}
		if want := strings.ReplaceAll(plain(string(text)), plain(old), plain(with)); plain(string(got)) != want {
			t.Fatalf("%q: %q by %q is %q, want %q", text, old, with, got, want)
		}
		if len(lines) == 0 && string(got) != string(text) {
			t.Fatalf("%q became %q without a match", text, got)
		}
		ends, crlf := strings.Count(string(text), "\n"), strings.Count(string(text), "\r\n")
		gotEnds, gotCRLF := strings.Count(string(got), "\n"), strings.Count(string(got), "\r\n")
		if ends > 0 && (crlf == 0 && gotCRLF > 0 || crlf == ends && gotCRLF < gotEnds) {
			t.Fatalf("%q: %q by %q is %q, with other line ends", text, old, with, got)
		}
	})
}
