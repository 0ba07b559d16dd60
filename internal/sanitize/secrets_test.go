package sanitize_test

import (
	"bytes"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/workcell-dev/workcell/internal/sanitize"
)

func TestSecrets(t *testing.T) {
	t.Parallel()
	s := sanitize.NewSecrets("[x]", "abcdefgh", "abcdefghXYZ", "", "efghijkl", "zzz", "a/b+c==", `/\\`)
	for in, want := range map[string]string{
		"": "", "none": "none", "abcdefgh": "[x]", "-abcdefghXYZ-": "-[x]-", "abcdefghijkl!": "[x]!", "abcdefgh abcdefgh": "[x] [x]",
		"abcdefg": "abcdefg", "abcabcdefgh": "abc[x]", "zzzzz.": "[x].", "abcdefghXYabcdefgh": "[x]XY[x]",
		"-a%2fb%2Bc%3D=-": "-[x]-", `-a\/b\u002bc\u003d\u003D-`: "-[x]-", "-a&#x2F;b&#43;c&#x3d;=-": "-[x]-",
		"a%2fb%2": "a%2fb%2", `a%2fb%252bc==`: `a%2fb%252bc==`,
		`-/\\-%2f\\\\-%2F\u005c\\-`: "-[x]-[x]-[x]-",
	} {
		if got := s.Replace(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
		for name, r := range map[string]io.Reader{"at once": strings.NewReader(in), "bytes": iotest.OneByteReader(strings.NewReader(in))} {
			if got, err := io.ReadAll(s.Reader(io.NopCloser(r))); err != nil || string(got) != want {
				t.Errorf("%s of %q: %q, %v, want %q", name, in, got, err, want)
			}
		}
	}
}

// TestSecretsOracle: the sizes of the parts don't depend on how similar a text is to a secret. No part of a secret
// passes before an error.
func TestSecretsOracle(t *testing.T) {
	t.Parallel()
	s := sanitize.NewSecrets("[x]", "abcdefgh", "xyz")
	sizes := func(parts ...string) (list []int) {
		var readers []io.Reader
		for _, p := range parts {
			readers = append(readers, strings.NewReader(p))
		}
		r := s.Reader(io.NopCloser(io.MultiReader(append(readers, iotest.ErrReader(io.ErrUnexpectedEOF))...)))
		for b := make([]byte, 100); ; {
			n, err := r.Read(b)
			if err != nil {
				return list
			}
			list = append(list, n)
		}
	}
	for _, tt := range []struct {
		parts []string
		want  []int
	}{
		{[]string{"data: abcd\n\n", "data\n"}, []int{12, 5}}, // whole lines pass at once
		{[]string{"0123456789", "0123456789"}, []int{3, 10}},
		{[]string{"0123456abc", "0123456789"}, []int{3, 10}},
		{[]string{"012abcdefg", "0123456789"}, []int{3, 10}},
		{[]string{"abcdefg"}, nil},
	} {
		if got := sizes(tt.parts...); !slices.Equal(got, tt.want) {
			t.Errorf("%q: parts of %d, want %d", tt.parts, got, tt.want)
		}
	}
}

func FuzzSecrets(f *testing.F) {
	f.Add([]byte("an abcdefgh here"), "abc", "cde", 3)
	f.Add([]byte("aaaaaaaa"), "aa", "aaa", 1)
	f.Fuzz(func(t *testing.T, text []byte, one, two string, step int) {
		if strings.Contains("#", one) || strings.Contains("#", two) { // the replacement would contain a secret
			return
		}
		s := sanitize.NewSecrets("#", one, two)
		whole := s.Replace(string(text))
		for _, w := range []string{one, two} {
			if !strings.Contains(w, "#") && strings.Contains(whole, w) {
				t.Fatalf("%q is in %q", w, whole)
			}
		}
		var parts [][]byte
		for rest := text; len(rest) > 0; {
			n := min(max(step, 1), len(rest))
			parts, rest = append(parts, rest[:n]), rest[n:]
		}
		var readers []io.Reader
		for _, p := range parts {
			readers = append(readers, bytes.NewReader(p))
		}
		if got, err := io.ReadAll(s.Reader(io.NopCloser(io.MultiReader(readers...)))); err != nil || string(got) != whole {
			t.Fatalf("in parts of %d: %q, %v, want %q", step, got, err, whole)
		}
	})
}
