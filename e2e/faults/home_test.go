//go:build linux

package faults

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// makes is a workflow that changes its workspace and creates an output slowly.
const makes = `id: makes
outputs: [out.bin]
sandbox: {runtime: bash}
steps:
  - {id: make, type: exec, command: "echo new > a.txt; head -c 8000000 /dev/urandom > out.bin; sha256sum out.bin"}
`

// TestKilledOnTheWayHome kills a run at each step of the collection of the results: the workspace is copied, the
// archive is partly written, the archive exists, the sandbox is being removed, and the end is recorded. After resume or
// cancel, no result is lost, and no temporary files of the run are left.
func TestKilledOnTheWayHome(t *testing.T) {
	for _, end := range []string{"resume", "cancel"} {
		for name, moment := range map[string]func(run string) bool{
			"copied":       there("base.zip"),
			"half written": there("made.zip-*"),
			"written":      there("made.zip"),
			"closing": func(run string) bool {
				if !there("made.zip")(run) {
					return false
				}
				time.Sleep(rand.N(30 * time.Millisecond)) // until the removal of the sandbox has started
				return true
			},
			"ended": func(run string) bool { return there("made.zip")(run) && !there("base.zip")(run) },
		} {
			t.Run(end+" when "+name, func(t *testing.T) {
				on(t, []string{"local"}, func(t *testing.T, h *host) {
					dir := t.TempDir()
					must(t, os.WriteFile(filepath.Join(dir, "a.txt"), []byte("old\n"), 0o600))
					args := []string{"run", workflow(t, makes), "--workspace", dir}
					for late := time.Now().Add(patience); !h.killedAt(t, moment, args...); {
						if time.Now().After(late) {
							t.Fatal("that moment did not come")
						}
					}
					faultOf("SIGKILL of a run that collects results", h.engine).inject(1)
					h.isHome(t, end)
				})
			})
		}
	}
}

// killedAt starts a run, kills it at a moment, and reports whether it did. The moments are short. On a busy host, the
// run may pass a moment before it is detected, and then the run ends normally.
func (h *host) killedAt(t *testing.T, moment func(run string) bool, args ...string) bool {
	t.Helper()
	before, _ := filepath.Glob(filepath.Join(h.State, "runs", "run_*")) // the pattern is valid
	p := h.Start(t, args...)
	for {
		select {
		case <-p.Ended:
			t.Logf("it was not seen:\n%s", p.Text())
			return false
		default:
		}
		now, _ := filepath.Glob(filepath.Join(h.State, "runs", "run_*"))
		for _, run := range now {
			if !slices.Contains(before, run) && moment(run) {
				p.Kill()
				return true
			}
		}
		time.Sleep(100 * time.Microsecond)
	}
}

// there returns a function that reports whether a run has a file.
func there(pattern string) func(run string) bool {
	return func(run string) bool {
		found, _ := filepath.Glob(filepath.Join(run, pattern)) // the pattern is valid
		return len(found) > 0
	}
}

// isHome ends the latest run, which was killed, with resume or cancel. Afterwards the results must be kept, unless it
// was canceled before they were written.
func (h *host) isHome(t *testing.T, end string) {
	t.Helper()
	r := h.latest(t)
	own := filepath.Join(h.State, "runs", r.ID)
	written, traced := there("made.zip")(own), there("trace.jsonl")(own)
	t.Logf("the killed run is %s, written: %v", r.State, written)
	if r.State == "interrupted" {
		h.OK(t, "runs", end, r.ID)
	} else if r.State != "succeeded" || !written {
		t.Fatalf("the killed run is %s, written: %v", r.State, written)
	}
	if written || end == "resume" {
		if patch := h.OK(t, "runs", "diff", r.ID); !strings.Contains(patch, "-old\n+new\n") {
			t.Errorf("the patch is\n%s", patch)
		}
		if out := h.OK(t, "runs", "get", r.ID, "out.bin", "-"); len(out) != 8_000_000 {
			t.Errorf("the output has %d bytes", len(out))
		}
	}
	if traced && !there("trace.jsonl")(own) {
		t.Error("the trace is gone")
	}
	h.OK(t, "sandbox", "gc", "--yes")
	for _, pattern := range []string{"base.zip*", "made.zip-*"} {
		if there(pattern)(filepath.Join(h.State, "runs", "*")) {
			t.Errorf("%s is left of the run", pattern)
		}
	}
	h.nothingLeft(t)
}
