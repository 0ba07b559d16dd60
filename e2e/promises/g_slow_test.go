package promises

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/session"
)

// stuck is a caller that takes no output until it is released.
type stuck struct {
	counter
	release chan struct{}
}

func (s *stuck) Write(p []byte) (int, error) {
	<-s.release
	return s.counter.Write(p)
}

// TestG6Stream: a caller that takes nothing holds the command up, and nothing else. When it takes what there is, it gets
// all of it.
func TestG6Stream(t *testing.T) {
	t.Parallel()
	const blocks, most = 64, 32
	b := newBox(t, pythonBox())
	out := &stuck{release: make(chan struct{})}
	release := sync.OnceFunc(func() { close(out.release) })
	defer release()
	ended := make(chan error, 1)
	go func() {
		_, err := b.s.Stream(t.Context(), session.ExecRequest{Argv: []string{"python3", "-c", `
import os
for i in range(64):
    block = memoryview(bytes(1 << 20))
    while block: block = block[os.write(1, block):]
    with open("n.new", "w") as f: f.write(str(i + 1))
    os.rename("n.new", "n")
`}, Timeout: 10 * time.Minute}, session.Streams{Stdout: out})
		ended <- err
	}()
	written := func() int {
		n, err := strconv.Atoi(b.sh(t, "cat n 2>/dev/null || echo -n 0"))
		must(t, err)
		return n
	}
	// A busy machine may look like a command that is held up, which does no harm here.
	for before, same := -1, 0; same < 4 && before <= most; time.Sleep(200 * time.Millisecond) {
		now := written()
		if same++; now != before {
			before, same = now, 0
		}
	}
	if n := written(); n > most {
		t.Errorf("%d MiB were written to a caller that took none", n)
	}
	if kib, err := strconv.Atoi(strings.Fields(b.sh(t, "grep VmHWM /proc/1/status"))[1]); err != nil || kib > 64<<10 {
		t.Errorf("the guest's memory reached %d KiB, %v", kib, err)
	}
	b.alive(t)
	release()
	if err := <-ended; err != nil || out.n != blocks<<20 {
		t.Errorf("%d bytes came, %v", out.n, err)
	}
}

// TestG6Reader: of a command's output the newest is kept for a reader that comes late, who is told that some is missing.
func TestG6Reader(t *testing.T) {
	t.Parallel()
	b := w.user
	id := b.ok(t, toolspec.ToolExec, obj{"command": "head -c 20000000 /dev/zero | tr '\\0' x; echo; echo last", "stream": true})["exec_id"]
	if out := b.ok(t, toolspec.ToolExecWait, obj{"exec_id": id, "timeout_seconds": 600}); out["status"] != "completed" {
		t.Fatalf("it ended %v", out)
	}
	var kept strings.Builder
	dropped := 0.0
	for since, done := 0.0, false; !done; {
		out := b.ok(t, toolspec.ToolExecRead, obj{"exec_id": id, "since_seq": since})
		for _, c := range out["chunks"].([]any) {
			kept.WriteString(c.(obj)["text"].(string))
		}
		missing, _ := out["dropped"].(float64)
		dropped, since, done = dropped+missing, out["next_seq"].(float64), out["done"] == true
	}
	if n := kept.Len(); n > 4<<20 || dropped == 0 || !strings.HasSuffix(kept.String(), "x\nlast\n") {
		t.Errorf("%d bytes are kept, %v chunks missing, the end is %.20q", n, dropped, kept.String()[max(0, n-20):])
	}
}
