package sandboxcmd

import (
	"errors"
	"strings"
	"testing"
)

func TestDetachKeys(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "\x10\x11", "ctrl-p,ctrl-q": "\x10\x11", "a": "a", "ctrl-@,ctrl-[,ctrl-\\,ctrl-],ctrl-^,ctrl-_,DEL": "\x00\x1b\x1c\x1d\x1e\x1f\x7f",
		"ctrl-a,ctrl-z,Q": "\x01\x1aQ",
	} {
		if got, err := parseDetachKeys(text); err != nil || string(got) != want {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
	for _, text := range []string{"ctrl-", "ctrl-pp", "ctrl-P", "ctrl-1", "del", ",", "a,", "ab", "ü"} {
		if got, err := parseDetachKeys(text); err == nil {
			t.Errorf("%q: got %q", text, got)
		} else if !strings.Contains(err.Error(), "invalid detach keys ("+text+")") {
			t.Errorf("%q: got %v", text, err)
		}
	}
}

// TestDetachReader verifies the reader with input in pieces of every size.
func TestDetachReader(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, tc := range []struct {
		keys, typed, want string
		detached          bool
	}{
		{"pq", "echo\n", "echo\n", false},
		{"pq", "echopqmore", "echo", true},
		{"pq", "ppq", "p", true},
		{"ppq", "pppq", "p", true},
		{"ppq", "ppxpq", "ppxpq", false},
		{"pq", "appetite", "appetite", false},
		{"pq", "up", "up", false}, // held back until the input ends
		{"x", "x", "", true},
		{"aab", "aaaab", "aa", true},
	} {
		for size := 1; size <= len(tc.typed); size++ {
			d := &detachReader{r: &pieces{tc.typed, size, broken}, keys: []byte(tc.keys)}
			var got []byte
			var err error
			for buf := make([]byte, 2); err == nil; {
				var n int
				n, err = d.Read(buf)
				got = append(got, buf[:n]...)
			}
			if string(got) != tc.want || errors.Is(err, broken) == tc.detached {
				t.Errorf("%+v in pieces of %d: got %q, %v", tc, size, got, err)
			}
		}
	}
}

// pieces returns text a few bytes at a time, and then fails.
type pieces struct {
	text string
	size int
	err  error
}

func (p *pieces) Read(b []byte) (int, error) {
	if p.text == "" {
		return 0, p.err
	}
	n := copy(b, p.text[:min(p.size, len(p.text))])
	p.text = p.text[n:]
	return n, nil
}
