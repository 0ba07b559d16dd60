//go:build linux

package client_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/workcell-dev/workcell/internal/guest/guesttest"
	"github.com/workcell-dev/workcell/internal/guest/wire"
)

func TestBothStreamsFlooded(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	req := sh("head -c 20000000 /dev/zero & head -c 20000000 /dev/zero >&2 & wait")
	res := mustRun(t, c, req)
	if res.Stdout.Total != 20000000 || res.Stderr.Total != 20000000 {
		t.Errorf("got %d and %d bytes", res.Stdout.Total, res.Stderr.Total)
	}
	var out, errs counter
	req.ExecID = newID()
	ares, err := c.Attach(testContext(t), req, nil, &out, &errs)
	if err != nil || out != 20000000 || errs != 20000000 || ares.StdoutBytes != 20000000 {
		t.Errorf("attached: %d and %d bytes, %+v, %v", out, errs, ares, err)
	}
}

type counter int64

func (c *counter) Write(p []byte) (int, error) {
	*c += counter(len(p))
	return len(p), nil
}

func TestSpill(t *testing.T) {
	t.Parallel()
	g, c := start(t)
	req := sh("seq 1 20000; echo small >&2")
	req.Spill = true
	req.HeadBytes, req.TailBytes = 100, 100
	res := mustRun(t, c, req)
	want := filepath.Join(g.Workdir, ".workcell/output", req.ExecID+".stdout")
	if res.Stdout.Path != want || res.Stdout.PathCut || res.Stderr.Path != "" {
		t.Fatalf("got %+v and %+v", res.Stdout, res.Stderr)
	}
	var all []byte
	for n := 1; n <= 20000; n++ {
		all = fmt.Appendln(all, n)
	}
	if got, err := os.ReadFile(want); err != nil || !bytes.Equal(got, all) {
		t.Errorf("spill file of %d bytes, want %d, %v", len(got), len(all), err)
	}
}

// TestOutputBesideNoise verifies that an ended command keeps its output while running commands print a lot.
func TestOutputBesideNoise(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for _, name := range []string{"a", "b"} {
		noise := sh("head -c 700000 /dev/zero; touch " + name + "; sleep 1000")
		noise.YieldMillis = 0
		mustRun(t, c, noise)
		mustRun(t, c, sh("until test -e "+name+"; do sleep 0.01; done"))
	}
	kept := sh("echo kept")
	mustRun(t, c, kept)
	mustRun(t, c, sh("true"))
	res, err := c.Wait(testContext(t), wire.WaitRequest{ExecID: kept.ExecID, WaitMillis: -1})
	if err != nil || string(res.Stdout.Head) != "kept\n" {
		t.Errorf("%+v, %v", res, err)
	}
}

// TestSpillIsBounded verifies that a spill file has at most 64 MiB.
func TestSpillIsBounded(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	req := sh("head -c 80000000 /dev/zero")
	req.Spill, req.TailBytes = true, 0
	res := mustRun(t, c, req)
	info, err := c.Stat(testContext(t), wire.PathRequest{Path: res.Stdout.Path})
	if err != nil || info.Size != 64<<20 || !res.Stdout.PathCut {
		t.Errorf("%+v, %v, %+v", info, err, res.Stdout)
	}
}

// TestSpillShare verifies that all spill files together use at most an eighth of a limited workspace, and the oldest
// files are removed first, including files of an earlier guest agent.
func TestSpillShare(t *testing.T) {
	t.Parallel()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	output := filepath.Join(dir, ".workcell/output")
	must(t, os.MkdirAll(output, 0o755))
	for i, name := range []string{"old.stdout", "newer.stderr", "mine.txt"} {
		path := filepath.Join(output, name)
		must(t, os.WriteFile(path, make([]byte, 400<<10), 0o644))
		if at := time.Now().Add(time.Duration(i-60) * time.Minute); os.Chtimes(path, at, at) != nil {
			t.Fatal("cannot set the time")
		}
	}
	g := guesttest.Start(t, &guesttest.Options{Binary: binary, Workdir: dir, Args: []string{"--workspace-bytes", fmt.Sprint(8 << 20)}})
	c := dial(t, g)
	spill := func(kib int) wire.Output {
		req := sh(fmt.Sprintf("head -c %dK /dev/zero", kib))
		req.Spill, req.HeadBytes, req.TailBytes = true, 0, 0
		return mustRun(t, c, req).Stdout
	}
	there := func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	}
	first := spill(400)
	if first.PathCut || there(filepath.Join(output, "old.stdout")) || !there(filepath.Join(output, "newer.stderr")) || !there(first.Path) {
		t.Errorf("after the first: %+v", first)
	}
	second := spill(3000)
	if info, err := os.Stat(second.Path); err != nil || info.Size() != 1<<20 || !second.PathCut {
		t.Errorf("a large one: %+v, %v", second, err)
	}
	if there(first.Path) || there(filepath.Join(output, "newer.stderr")) || !there(filepath.Join(output, "mine.txt")) {
		t.Error("the others did not make room, or a file that is the user's did")
	}
}

// TestSpillIntoTrap verifies that a command cannot redirect its output file, even if it knows the path.
func TestSpillIntoTrap(t *testing.T) {
	t.Parallel()
	for name, trap := range map[string]string{
		"directory is a link": "mkdir .workcell && ln -s $OUT .workcell/output",
		"file is a link":      "mkdir -p .workcell/output && ln -s $OUT/canary .workcell/output/$WORKCELL_EXEC.stdout",
		"file exists":         "mkdir -p .workcell/output && echo keep > .workcell/output/$WORKCELL_EXEC.stdout",
		"file is a fifo":      "mkdir -p .workcell/output && mkfifo .workcell/output/$WORKCELL_EXEC.stdout",
		"parent is a file":    "echo > .workcell",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, c := start(t)
			outside := t.TempDir()
			req := sh(trap + "; seq 1 20000")
			req.Env = append(req.Env, "OUT="+outside)
			req.Spill = true
			res := mustRun(t, c, req)
			left, err := os.ReadDir(outside)
			if err != nil || len(left) != 0 {
				t.Errorf("written outside: %v, %v", left, err)
			}
			if res.Stdout.Path != "" || res.Stdout.Total == 0 {
				t.Errorf("got %+v", res.Stdout)
			}
		})
	}
}

// TestChunksAreText verifies that a large amount of non-ASCII text is split between characters and no text is lost.
func TestChunksAreText(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	req := sh(`i=0; while [ $i -lt 2000 ]; do printf 'aé€😀é€😀é€😀é€😀é€😀é€😀é€😀é€😀é€😀é€😀'; i=$((i+1)); done; printf '\360\237'`)
	req.YieldMillis = -1
	mustRun(t, c, req)
	var text []byte
	for since := int64(0); ; {
		res, err := c.Read(testContext(t), wire.ReadRequest{ExecID: req.ExecID, SinceSeq: since})
		must(t, err)
		for _, chunk := range res.Chunks {
			if !utf8.Valid(bytes.TrimSuffix(chunk.Data, []byte("\360\237"))) {
				t.Errorf("chunk %d of %d bytes is cut inside a character", chunk.Seq, len(chunk.Data))
			}
			text = append(text, chunk.Data...)
		}
		if since = res.NextSeq; res.Done {
			break
		}
	}
	if want := strings.Repeat("a"+strings.Repeat("é€😀", 10), 2000) + "\360\237"; string(text) != want {
		t.Errorf("%d bytes, want %d", len(text), len(want))
	}
}
