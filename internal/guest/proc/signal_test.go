//go:build linux

package proc

import "testing"

func TestParseSignal(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]int{"TERM": 15, "SIGTERM": 15, "sigint": 2, "USR1": 10, "": 0, "9": 0, "SIG": 0, "RTMIN": 0, "TERM ": 0} {
		sig, err := ParseSignal(name)
		if int(sig) != want || (err == nil) != (want > 0) {
			t.Errorf("%q: got %d, %v", name, sig, err)
		}
	}
}
