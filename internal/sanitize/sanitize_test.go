package sanitize

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain text, ünï, 日本\n\ttab":      "plain text, ünï, 日本\n\ttab",
		"\x1b[31mred\x1b[0m":              `\x1b[31mred\x1b[0m`,
		"\x1b]0;title\a":                  `\x1b]0;title\x07`,
		"over\rwrite":                     `over\x0dwrite`,
		"bad \xff byte":                   `bad \xff byte`,
		"a\u202eb\u200bc\u0085":           `a\u202eb\u200bc\u0085`,
		"nul\x00del\x7f":                  `nul\x00del\x7f`,
		"a\u3164\u115f\u034f\u2800b":      `a\u3164\u115f\u034f\u2800b`,
		"a\ufe0fb\U000e0101 1\ufe0f":      `a\ufe0fb\ue0101 1\ufe0f`,
		"a\ufe0f\u20e3":                   "a\\ufe0f\u20e3",
		"⚠\ufe0f ℹ\ufe0f ↔\ufe0f ⤴\ufe0f": "⚠\ufe0f ℹ\ufe0f ↔\ufe0f ⤴\ufe0f",
		"‼\ufe0f 〰\ufe0f 1\ufe0f\u20e3":   "‼\ufe0f 〰\ufe0f 1\ufe0f\u20e3",
	} {
		if got := Text(in); got != want {
			t.Errorf("Text(%q) = %q, want %q", in, got, want)
		}
	}
	if got := Strip("a\u3164\ufe0f\U000e0101b"); got != "ab" {
		t.Errorf("Strip: %q", got)
	}
	for got, want := range map[string]string{
		Line("a\nb\tc"): `a\nb\tc`, Cut("héllo", 5): "héllo", Cut("héllo!", 5): "héll…", OneLine("a\n  b c", 4): "a b…",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func FuzzText(f *testing.F) {
	f.Add("\x1b[2J\xc2\x9b31m")
	f.Fuzz(func(t *testing.T, in string) {
		out := Text(in)
		if !utf8.ValidString(out) || strings.ContainsAny(out, "\x1b\r\x00\x7f\u009b") {
			t.Fatalf("Text(%q) = %q", in, out)
		}
	})
}

func TestEngineErrorsHideHostPaths(t *testing.T) {
	t.Parallel()
	errAway := errors.New("engine unavailable")
	dial := &net.OpError{Op: "dial", Net: "unix", Addr: &net.UnixAddr{Name: "/var/run/docker.sock", Net: "unix"}, Err: syscall.ECONNREFUSED}
	for _, cause := range []error{
		fmt.Errorf("%w: %w", errAway, dial),
		fmt.Errorf("%w: Cannot connect to the Docker daemon at unix:///run/user/1000/docker.sock. Is it running?", errAway),
		fmt.Errorf("%w: open /home/zoe/.docker/config.json: permission denied", errAway),
	} {
		err := EngineError(cause)
		for _, secret := range []string{"docker.sock", "/var", "/run", "/home", "zoe"} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%q shows %q", err, secret)
			}
		}
		if !errors.Is(err, errAway) {
			t.Errorf("%v lost its sentinel", err)
		}
	}
	if !errors.Is(EngineError(fmt.Errorf("wait: %w", context.Canceled)), context.Canceled) {
		t.Error("a context error lost its identity")
	}
}
