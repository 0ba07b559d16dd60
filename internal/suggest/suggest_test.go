package suggest_test

import (
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/internal/suggest"
)

func TestClosest(t *testing.T) {
	t.Parallel()
	known := []string{"mode", "runtime", "image", "session", "memory_mb", "timeout_seconds", "exec_timeout_seconds", "env"}
	tests := []struct{ word, want string }{
		{"imagee", "image"},
		{"Image", "image"},
		{"memoryMB", "memory_mb"},
		{"timeout_sec", "timeout_seconds"},
		{"runtmie", "runtime"},
		{"evn", "env"},
		{"envs", "env"},
		{"colour", ""},
		{"", ""},
		{"___", ""},
		{strings.Repeat("image", 100), ""},
	}
	for _, tt := range tests {
		got, ok := suggest.Closest(tt.word, known)
		if got != tt.want || ok != (tt.want != "") {
			t.Errorf("Closest(%q) = %q, %v; want %q", tt.word, got, ok, tt.want)
		}
	}
	for word, want := range map[string]string{"imag": `did you mean "image"?`, "x": "available: image, user"} {
		if got := suggest.Hint(word, []string{"image", "user"}); got != want {
			t.Errorf("Hint(%q) = %s", word, got)
		}
	}
}
