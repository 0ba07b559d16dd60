package sessiontest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

func yielding(t *testing.T, s *session.Session) {
	res := Run(t, s, sandbox.ExecRequest{Command: "echo one; while [ ! -e yield-on ]; do sleep 0.05; done; echo two; exit 7", Yield: 500 * time.Millisecond})
	if out := string(res.Stdout.Bytes()); res.Status != sandbox.ExecRunning || out != "one\n" && out != "" {
		t.Fatalf("%+v, stdout %q", res.ExecStatus, res.Stdout.Bytes())
	}
	command := s.Command(res.ExecID)
	first, err := command.Read(t.Context(), sandbox.ReadRequest{Wait: time.Minute})
	if err != nil || len(first.Chunks) != 1 || first.Chunks[0].Seq != 1 || string(first.Chunks[0].Data) != "one\n" || first.Done {
		t.Errorf("first read: %+v, %v", first, err)
	}
	status, err := command.Wait(t.Context(), time.Millisecond)
	if err != nil || status.Done() {
		t.Errorf("short wait: %+v, %v", status, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := command.Wait(ctx, -1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a wait whose context ended: %v", err)
	}
	Output(t, s, "touch yield-on")
	status, err = command.Wait(t.Context(), -1)
	if err != nil || status.Status != sandbox.ExecCompleted || status.ExitCode != 7 {
		t.Errorf("wait: %+v, %v", status, err)
	}
	for range 2 { // reads do not consume the output
		all, err := command.Read(t.Context(), sandbox.ReadRequest{})
		if err != nil || !all.Done || len(all.Chunks) != 2 || string(all.Chunks[1].Data) != "two\n" {
			t.Errorf("read of all: %+v, %v", all, err)
		}
	}
	rest, err := command.Read(t.Context(), sandbox.ReadRequest{SinceSeq: first.NextSeq})
	if err != nil || !rest.Done || len(rest.Chunks) != 1 || rest.Chunks[0].Stream != "stdout" {
		t.Errorf("read of the rest: %+v, %v", rest, err)
	}
	for _, req := range []sandbox.ReadRequest{
		{SinceSeq: -1}, {MaxChunks: -1}, {Wait: -1}, {Wait: time.Hour},
	} {
		if _, err := command.Read(t.Context(), req); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("%+v: %v, want ErrInvalid", req, err)
		}
	}
}

func writeStdin(t *testing.T, s *session.Session) {
	command, err := s.Start(t.Context(), sandbox.ExecRequest{Argv: []string{"cat"}, Stdin: []byte("first "), StdinOpen: true})
	must(t, err)
	must(t, command.Write(t.Context(), []byte("\x00\xff "), false))
	must(t, command.Write(t.Context(), []byte("last"), true))
	if res, err := command.Wait(t.Context(), patience); err != nil || res.ExitCode != 0 || string(res.Stdout.Bytes()) != "first \x00\xff last" {
		t.Fatalf("%+v, %q, %v", res.ExecStatus, res.Stdout.Bytes(), err)
	}
}

func killing(t *testing.T, s *session.Session) {
	res := Run(t, s, sandbox.ExecRequest{Command: "echo began; sleep 1000", Background: true})
	if res.Status != sandbox.ExecRunning {
		t.Errorf("background: %+v", res.ExecStatus)
	}
	command := s.Command(res.ExecID)
	_, err := command.Read(t.Context(), sandbox.ReadRequest{Wait: time.Minute})
	must(t, err)
	status, err := command.Signal(t.Context(), "")
	if err != nil || status.Status != sandbox.ExecKilled {
		t.Errorf("kill: %+v, %v", status, err)
	}
	if again, err := command.Signal(t.Context(), ""); err != nil || again.Status != sandbox.ExecKilled {
		t.Errorf("killing an ended command: %+v, %v", again, err)
	}
	res = Run(t, s, sandbox.ExecRequest{Command: "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done", Background: true})
	command = s.Command(res.ExecID)
	_, err = command.Read(t.Context(), sandbox.ReadRequest{Wait: time.Minute})
	must(t, err)
	_, err = command.Signal(t.Context(), "INT")
	must(t, err)
	if status, err := command.Wait(t.Context(), patience); err != nil || status.ExitCode != 9 {
		t.Errorf("after SIGINT: %+v, %v", status, err)
	}
}

func largeOutput(t *testing.T, s *session.Session) {
	const size = 3 << 20
	command := fmt.Sprintf("head -c %d /dev/zero | tr '\\0' x; echo end", size)
	out := Run(t, s, sandbox.ExecRequest{Command: command, HeadBytes: 100, TailBytes: 200}).Stdout
	if len(out.Head) != 100 || len(out.Tail) != 200 || out.Total != size+4 || out.Omitted != out.Total-300 ||
		!bytes.HasSuffix(out.Tail, []byte("xend\n")) {
		t.Errorf("head %d, tail %d, total %d, omitted %d", len(out.Head), len(out.Tail), out.Total, out.Omitted)
	}
	if !strings.HasPrefix(out.Path, s.Info().Workdir+"/") || out.PathCut {
		t.Fatalf("the whole output is at %q, cut %v", out.Path, out.PathCut)
	}
	if got := Output(t, s, "wc -c < "+out.Path); strings.TrimSpace(got) != fmt.Sprint(size+4) {
		t.Errorf("the file has %s bytes", got)
	}
}
