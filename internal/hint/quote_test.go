package hint_test

import (
	"testing"

	"github.com/workcell-dev/workcell/internal/hint"
)

// TestQuote verifies that a shell reads the word unchanged, and that plain words have no quotes.
func TestQuote(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"/a/b-c.txt": "/a/b-c.txt", "": "''", "my results": "'my results'", "a;b": "'a;b'", "it's": `'it'\''s'`, "~": "'~'",
	} {
		if got := hint.Quote(word); got != want {
			t.Errorf("%q: %s, want %s", word, got, want)
		}
	}
}
