//go:build linux

package client_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/guest/wire"
)

// noise returns n reproducible, incompressible bytes.
func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b) // documented to never fail
	return b
}

func TestStdin(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	for name, data := range map[string][]byte{
		"none":       nil,
		"text":       []byte("hello\n"),
		"binary":     {0, 1, 0xff, 0xfe, 0},
		"inline":     noise(wire.InlineData),
		"pipe":       noise(64<<10 - 1),
		"one beyond": noise(wire.InlineData + 1),
		"1 MiB":      noise(1 << 20),
		"50 MiB":     noise(50 << 20),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			req := sh("sha256sum | cut -c1-64")
			req.Stdin = data
			res := mustRun(t, c, req)
			if got, want := strings.TrimSpace(string(res.Stdout.Head)), fmt.Sprintf("%x", sha256.Sum256(data)); got != want {
				t.Errorf("the command read something else: %v", brief(res))
			}
			if name == "50 MiB" {
				return
			}
			var out bytes.Buffer
			ares, err := c.Attach(testContext(t), sh("cat"), bytes.NewReader(data), &out, nil)
			if err != nil || !bytes.Equal(out.Bytes(), data) {
				t.Errorf("attached: %d bytes of %d came back, %+v, %v", out.Len(), len(data), ares, err)
			}
		})
	}
}

func TestStdinThatNobodyReads(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	big := noise(2 << 20)
	for script, code := range map[string]int{"exit 3": 3, "exec <&-; sleep 0.1; exit 4": 4, "head -c 10 >/dev/null; exit 5": 5, "sleep 0.2; exit 6": 6} {
		req := sh(script)
		req.Stdin = big
		if res := mustRun(t, c, req); res.ExitCode != code || res.State != wire.ExecCompleted {
			t.Errorf("%s: got %+v", script, res)
		}
		res, err := c.Attach(testContext(t), sh(script), bytes.NewReader(big), nil, nil)
		if err != nil || res.ExitCode != code {
			t.Errorf("%s, attached: got %+v, %v", script, res, err)
		}
	}
}

// TestStdinReaderThatBlocks verifies that Attach returns even if a Read of stdin never returns.
func TestStdinReaderThatBlocks(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	r, w := io.Pipe()
	defer w.Close()
	res, err := c.Attach(testContext(t), sh("exit 7"), r, nil, nil)
	if err != nil || res.ExitCode != 7 {
		t.Errorf("got %v, %v", brief(res), err)
	}
}

func TestStdinOfAYieldedExec(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	data := noise(4 << 20)
	req := sh("until [ -e go ]; do sleep 0.05; done; sha256sum | cut -c1-64")
	req.Stdin, req.YieldMillis = data, 50
	res := mustRun(t, c, req)
	if res.State != wire.ExecRunning {
		t.Fatalf("got %v", brief(res))
	}
	ctx := testContext(t)
	mustPut(t, c, "go", nil)
	must(t, second(c.Wait(ctx, wire.WaitRequest{ExecID: req.ExecID, WaitMillis: -1})))
	r, err := c.Read(ctx, wire.ReadRequest{ExecID: req.ExecID})
	if want := fmt.Sprintf("%x\n", sha256.Sum256(data)); err != nil || len(r.Chunks) != 1 || string(r.Chunks[0].Data) != want {
		t.Errorf("got %+v, %v", r.Chunks, err)
	}
}

func TestWriteStdin(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	ctx := testContext(t)
	req := sh("cat")
	req.StdinOpen, req.YieldMillis, req.Stdin = true, 0, []byte("first ")
	mustRun(t, c, req)
	big := noise(3 << 20)
	must(t, c.WriteStdin(ctx, wire.StdinRequest{ExecID: req.ExecID, Data: big}))
	must(t, c.WriteStdin(ctx, wire.StdinRequest{ExecID: req.ExecID, EOF: true}))
	st, err := c.Wait(ctx, wire.WaitRequest{ExecID: req.ExecID, WaitMillis: -1})
	if want := int64(len("first ") + len(big)); err != nil || st.StdoutBytes != want {
		t.Errorf("got %+v, %v; want %d bytes", st, err, want)
	}
	fails(t, "after the end", c.WriteStdin(ctx, wire.StdinRequest{ExecID: req.ExecID, Data: []byte("late")}), wire.CodeInvalid)
	req = sh("sleep 1")
	background(t, c, req)
	fails(t, "without an open input", c.WriteStdin(ctx, wire.StdinRequest{ExecID: req.ExecID, Data: []byte("x")}), wire.CodeInvalid)
	fails(t, "unknown exec", c.WriteStdin(ctx, wire.StdinRequest{ExecID: "unknown", Data: []byte("x")}), wire.CodeNotFound)
}

// TestWriteStdinBlocked verifies that a write not read by the command ends with the context, and the command stays
// usable.
func TestWriteStdinBlocked(t *testing.T) {
	t.Parallel()
	_, c := start(t)
	req := sh("sleep 1000")
	req.StdinOpen, req.YieldMillis = true, 0
	mustRun(t, c, req)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := c.WriteStdin(ctx, wire.StdinRequest{ExecID: req.ExecID, Data: noise(1 << 20)}); err == nil {
		t.Error("a full input took everything")
	}
	st, err := c.Kill(testContext(t), wire.KillRequest{ExecID: req.ExecID})
	if err != nil || st.State != wire.ExecKilled {
		t.Errorf("Kill: %+v, %v", st, err)
	}
}
