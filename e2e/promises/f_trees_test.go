//go:build linux

package promises

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/internal/toolspec"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session/record"
)

// beats returns the count of each child of family.py.
func beats(t *testing.T, b *testSandbox, dir string) string {
	t.Helper()
	return b.sh(t, "cd "+dir+" && for f in *; do case $f in *.new) ;; *) echo $f $(cat $f) ;; esac; done")
}

// allDead waits until no child counts and /proc contains none of them.
func allDead(t *testing.T, b *testSandbox, dir, mark string) {
	t.Helper()
	before := beats(t, b, dir)
	if n := strings.Count(before, "\n"); n < 9 {
		t.Errorf("only %d children were ever there:\n%s", n, before)
	}
	eventually(t, "all children have ended", func() bool {
		time.Sleep(150 * time.Millisecond) // several beats
		after := beats(t, b, dir)
		found := b.exec(t, sandbox.ExecRequest{
			Command: "read mark; for p in /proc/[0-9]*; do grep -qa -- \"$mark\" $p/cmdline && cat $p/cmdline | tr '\\0' ' ' && echo; done 2>/dev/null; true",
			Stdin:   []byte(mark + "\n"),
		})
		ended := after == before && found == ""
		before = after
		return ended
	})
}

// TestF2Tree: a command with child processes of every kind is killed at the timeout.
func TestF2Tree(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *testSandbox) {
		dir, mark := b.dir(t), "mark-"+record.NewID()
		out := b.timedOut(t, obj{"cmd": []string{"python3", "-c", program(t, "family.py"), dir, mark, "wait"}}, 3, func(out obj) bool { return out["stdout"] != "" })
		if out["stdout"] != "all there\n" {
			t.Fatalf("%v", out)
		}
		allDead(t, b, dir, mark)
	})
}

// TestF5Cancel: canceling a call kills the command, including actions scheduled for later by the command.
func TestF5Cancel(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, b *testSandbox) {
		for name, call := range map[string]func(context.Context, []string) error{
			"tool": func(ctx context.Context, argv []string) error {
				_, err := b.raw(ctx, toolspec.ToolExec, obj{"cmd": argv, "yield_ms": 600_000})
				return err
			},
			"Exec": func(ctx context.Context, argv []string) error {
				_, err := b.s.Exec(ctx, sandbox.ExecRequest{Argv: argv})
				return err
			},
			"Stream": func(ctx context.Context, argv []string) error {
				_, err := b.s.Stream(ctx, sandbox.ExecRequest{Argv: argv}, sandbox.Streams{Stdout: io.Discard})
				return err
			},
		} {
			dir, mark := b.dir(t), "mark-"+record.NewID()
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- call(ctx, []string{"python3", "-c", program(t, "family.py"), dir, mark, "wait"}) }()
			eventually(t, "the children are running", func() bool { return strings.Count(beats(t, b, dir), "\n") >= 9 })
			cancel()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v, want context.Canceled", name, err)
			}
			allDead(t, b, dir, mark)
		}
	})
}

// TestF5CommandLine interrupts and kills the command line while its command runs.
func TestF5CommandLine(t *testing.T) {
	t.Parallel()
	state := w.stateDir(t, w.instance)
	b := w.user
	for _, sig := range []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			dir, mark := b.dir(t), "mark-"+record.NewID()
			cmd := command(t, state, nil, "sandbox", "exec", b.s.ID(), "--", "python3", "-c", program(t, "family.py"), dir, mark, "wait")
			var said bytes.Buffer
			cmd.Stderr = &said
			must(t, cmd.Start())
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			eventually(t, "the children are running", func() bool {
				if len(ended) > 0 {
					t.Fatalf("it ended with %v: %s", <-ended, &said)
				}
				return strings.Count(beats(t, b, dir), "\n") >= 9
			})
			must(t, cmd.Process.Signal(sig))
			err := <-ended
			var exit *exec.ExitError
			if !errors.As(err, &exit) {
				t.Fatalf("it ended with %v: %s", err, &said)
			}
			if want := 128 + int(sig.(syscall.Signal)); sig != syscall.SIGKILL && exit.ExitCode() != want {
				t.Errorf("exit code %d, want %d", exit.ExitCode(), want)
			}
			allDead(t, b, dir, mark)
		})
	}
}
