package promises

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/e2e/clocktest"
	"github.com/workcell-dev/workcell/session"
)

// TestK8InterruptedRunEnds kills a run's process. Some minutes later its sandbox is gone, with all that ran in it; who goes
// on with the run has its files nevertheless, and then nothing is left.
func TestK8InterruptedRunEnds(t *testing.T) {
	t.Parallel()
	bin, err := w.cli()
	must(t, err)
	clock := clocktest.New(t, bin)
	h := newHost(t)
	file := filepath.Join(t.TempDir(), "run.yaml")
	must(t, os.WriteFile(file, []byte(`id: interrupted
sandbox: {image: "`+debianImage+`"}
steps:
  - {id: one, type: exec, command: "echo kept > file"}
  - {id: two, type: exec, command: "if test -e again; then cat file; else touch again; sleep 6000; fi"}
`), 0o600))
	run := h.command(t, "run", file)
	var stderr buffer
	run.Stderr = &stderr
	must(t, run.Start())
	id := h.awaitRun(t, "again")
	if id == "" {
		t.Fatalf("the run does not come to its second step\n%s", stderr.String())
	}
	must(t, run.Process.Kill())
	_ = run.Wait() // it was killed
	clock.Set(time.Minute)
	must(t, clock.Under(h.command(t, "sessions", "ls")).Run())
	if n := h.sandboxes(t); n != 1 {
		t.Fatalf("after a minute there are %d sandboxes", n)
	}
	clock.Set(5 * time.Minute)
	for deadline := time.Now().Add(session.DefaultReapEvery + patience); h.sandboxes(t) != 0; {
		if time.Now().After(deadline) {
			t.Fatal("after five minutes the sandbox is there")
		}
		must(t, clock.Under(h.command(t, "sessions", "ls")).Run())
	}
	out, err := h.command(t, "runs", "resume", id, "-o", "json").Output()
	if err != nil || !strings.Contains(string(out), `"stdout": "kept\n"`) {
		t.Errorf("resume: %v\n%s", err, out)
	}
	if n := h.sandboxes(t); n != 0 {
		t.Errorf("%d sandboxes are left of the run", n)
	}
}

// awaitRun waits until the only run has made a file, and gives its id; empty when that does not come.
func (h *host) awaitRun(t *testing.T, file string) string {
	t.Helper()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		var list []struct{ ID string }
		out, err := h.command(t, "runs", "ls", "-o", "json").Output()
		if err != nil || json.Unmarshal(out, &list) != nil || len(list) != 1 {
			continue
		}
		if h.command(t, "sessions", "exec", list[0].ID, "--", "test", "-e", file).Run() == nil {
			return list[0].ID
		}
	}
	return ""
}
