package otelsetup

import (
	"bytes"
	"errors"
	"testing"
)

func TestLineLog(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := NewLog(&out)
	log.Info("nobody asked")
	log.Warn("plain")
	log.With("sandbox", "sbx_1").WithGroup("g").Error("cannot", "n", 2, "error", errors.New("two\nlines \x1b[1m"))
	const want = "workcell: warning: plain\nworkcell: error: cannot (sandbox sbx_1, n 2): two\\nlines \\x1b[1m\n"
	if out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
