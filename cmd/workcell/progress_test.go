package main

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/workcell-dev/workcell/backend"
)

func TestProgressOffATerminalIsPlainLines(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	p := newProgress(&b)
	p.Status("opening")
	p.Pull(backend.PullProgress{Image: "python", Status: "Pulling"})
	p.Pull(backend.PullProgress{Image: "python", Layer: "a", Status: "Downloading", Current: 1 << 20, Total: 3 << 20})
	p.Line("step \x1b[31m%s", "done\nfake line")
	p.Close()
	want := "pulling image python\nstep \\x1b[31mdone\\nfake line\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestProgressOnATerminalHasALiveLine(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	now := time.Unix(0, 0)
	p := &progress{w: &b, live: true, now: func() time.Time { return now }, pulls: map[string]*pullState{}}
	p.Status("step a")
	now = now.Add(90 * time.Second)
	p.Line("a line")
	p.Pull(backend.PullProgress{Image: "python", Layer: "x", Status: "Downloading", Current: 1 << 20, Total: 3 << 20})
	p.Status("")
	const erase = "\r\x1b[K"
	want := "step a … 0s" + erase + "a line\nstep a … 1m30s" + erase + "pulling image python\nstep a … 1m30s" + erase +
		"pulling python: 1.0 MiB of 3.0 MiB … 1m30s" + erase
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestByteSize(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536 << 10: "1.5 MiB", 5 << 40: "5.0 TiB"} {
		if got := byteSize(n); got != want {
			t.Errorf("byteSize(%d) = %s, want %s", n, got, want)
		}
	}
}
