package memory_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/backend/backendtest"
	"github.com/workcell-dev/workcell/backend/memory"
	"github.com/workcell-dev/workcell/internal/checktest"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

const image = "debian:12"

// manage returns a backend and a manager without a limit for files. The end of the test closes both.
func manage(t *testing.T) (*memory.Backend, *session.Manager) {
	t.Helper()
	b, err := memory.New(nil)
	must(t, err)
	m, err := session.NewManager(b, &session.Options{MaxFileBytes: math.MaxInt64})
	must(t, err)
	t.Cleanup(func() { must(t, errors.Join(m.Close(context.Background()), b.Close())) })
	return b, m
}

func open(t *testing.T, m *session.Manager) *session.Session {
	t.Helper()
	s, _, err := m.Open(t.Context(), session.UserKey("test"), session.Request{Image: image})
	must(t, err)
	return s
}

// TestUnscripted verifies that the error output of a command without an answer shows the missing call of On.
func TestUnscripted(t *testing.T) {
	b, m := manage(t)
	res, err := open(t, m).Exec(t.Context(), sandbox.ExecRequest{Command: "make"})
	if err != nil || res.ExitCode != 127 || !strings.Contains(string(res.Stderr.Bytes()), `b.On("make", memory.Answer{`) {
		t.Errorf("%v, exit code %d, %q", err, res.ExitCode, res.Stderr.Bytes())
	}
	if got := b.Commands(); !slices.Equal(got, []string{"make"}) {
		t.Errorf("commands %q", got)
	}
}

// TestTimeout verifies that a command over the timeout ends as on a real engine.
func TestTimeout(t *testing.T) {
	b, m := manage(t)
	b.On("sleep 1h", memory.Answer{Stdout: "begun\n", Takes: time.Hour})
	res, err := open(t, m).Exec(t.Context(), sandbox.ExecRequest{Command: "sleep 1h", Timeout: time.Second})
	if err != nil || res.Status != sandbox.ExecTimedOut || string(res.Stdout.Bytes()) != "begun\n" {
		t.Errorf("%v, %+v", err, res)
	}
}

// TestLine verifies that only shells get their command line as the Line.
func TestLine(t *testing.T) {
	for line, argv := range map[string][]string{
		"make": {"nice", "/bin/bash", "-l", "-ec", "make"}, "gcc -c main.c": {"gcc", "-c", "main.c"}, "sh -c": {"sh", "-c"},
	} {
		if got := (memory.Command{Argv: argv}).Line(); got != line {
			t.Errorf("%q: %q, want %q", argv, got, line)
		}
	}
}

// TestSignal verifies that a command ended by a signal is killed, as on a real engine.
func TestSignal(t *testing.T) {
	b, m := manage(t)
	b.On("sleep 1h", memory.Answer{Takes: time.Hour})
	c, err := open(t, m).Start(t.Context(), sandbox.ExecRequest{Command: "sleep 1h"})
	must(t, err)
	if st, err := c.Signal(t.Context(), "INT"); err != nil || st.Status != sandbox.ExecKilled || st.Signal != "SIGINT" {
		t.Errorf("%v, %+v", err, st)
	}
}

// TestLargeStreams verifies that standard input larger than a request reaches the script completely, and that large
// output is returned completely. A part of a file can be read, and a large file can be edited.
func TestLargeStreams(t *testing.T) {
	b, m := manage(t)
	in := strings.Repeat("0123456789abcdef", 40_000)
	b.Script(func(c memory.Command) (memory.Answer, bool) { return memory.Answer{Stdout: string(c.Stdin)}, true })
	s := open(t, m)
	var out strings.Builder
	if _, err := s.Stream(t.Context(), sandbox.ExecRequest{Argv: []string{"cat"}}, sandbox.Streams{Stdin: strings.NewReader(in), Stdout: &out}); err != nil || out.String() != in {
		t.Errorf("%v, %d bytes of %d", err, out.Len(), len(in))
	}
	must(t, second(s.WriteFile(t.Context(), "dir/large", strings.NewReader(in), sandbox.WriteFileOptions{})))
	out.Reset()
	if _, err := s.ReadFile(t.Context(), "dir/large", &out, sandbox.ReadFileOptions{}); err != nil || out.String() != in {
		t.Errorf("%v, %d bytes of %d", err, out.Len(), len(in))
	}
	must(t, second(s.EditFile(t.Context(), "dir/large", 0, func(old []byte) ([]byte, error) { return old[1:], nil })))
	data, _, err := s.ReadFileBytes(t.Context(), "dir/large", sandbox.ReadFileOptions{Limit: 1})
	if err != nil || string(data) != "1" {
		t.Errorf("%v, %.20q", err, data)
	}
}

// TestFaults verifies that errors from Fault reach the user of the session.
func TestFaults(t *testing.T) {
	b, m := manage(t)
	b.Fault(func(_ context.Context, c memory.Call) error {
		if c.Op == memory.OpCreate {
			return backend.ErrImage
		}
		return nil
	})
	if _, _, err := m.Open(t.Context(), session.UserKey("test"), session.Request{Image: image}); !errors.Is(err, backend.ErrImage) {
		t.Errorf("Open: %v, want ErrImage", err)
	}
	b.Fault(nil)
	s := open(t, m)
	b.On("reboot", memory.Answer{Lost: true})
	backendtest.Fails(t, "Exec", second(s.Exec(t.Context(), sandbox.ExecRequest{Command: "reboot"})), backend.ErrLost)
	if b.Lose(s.ID()) {
		t.Error("the lost sandbox is still there")
	}
}

// TestUnsupported verifies that requests for unsupported features fail and create no sandbox.
func TestUnsupported(t *testing.T) {
	b, _ := manage(t)
	for name, change := range map[string]func(*backend.Spec){
		"fork": func(s *backend.Spec) {
			s.Fork = &backend.ForkOf{SessionID: backendtest.Spec("unsupported", image).ID, Snapshot: "one"}
		},
		"mounts": func(s *backend.Spec) { s.Mounts = []backend.Mount{{Source: "/srv", Target: "/data"}} },
	} {
		spec := backendtest.Spec("unsupported", image)
		change(&spec)
		if info, err := b.Create(t.Context(), spec); !errors.Is(err, backend.ErrUnsupported) {
			t.Errorf("%s: %+v, %v, want ErrUnsupported", name, info, err)
		}
	}
}

var must = checktest.Must

// second returns the error of a call with two results.
func second[T any](_ T, err error) error { return err }
