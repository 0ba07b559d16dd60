package executor_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/workcell-dev/workcell/executor"
	"github.com/workcell-dev/workcell/internal/checktest"
)

// FuzzLines verifies that the lines do not depend on the division of the output into writes.
func FuzzLines(f *testing.F) {
	f.Add([]byte("a\n\nb\r\nc"), 1)
	f.Add([]byte("{}\n{}\n"), 3)
	f.Fuzz(func(t *testing.T, output []byte, step int) {
		if step < 1 {
			return
		}
		var got, want [][]byte
		w := executor.Lines(func(line []byte, cut bool) error {
			got = append(got, bytes.Clone(line))
			if cut {
				t.Error("cut")
			}
			return nil
		})
		for rest := output; len(rest) > 0; {
			n := min(step, len(rest))
			if _, err := w.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		checktest.Must(t, executor.Flush(w))
		for line := range bytes.SplitSeq(output, []byte("\n")) {
			want = append(want, bytes.TrimSuffix(line, []byte("\r")))
		}
		if len(output) == 0 || bytes.HasSuffix(output, []byte("\n")) { // no line follows the last line end
			want = want[:len(want)-1]
		}
		if !slices.EqualFunc(got, want, bytes.Equal) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
