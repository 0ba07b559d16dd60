package sessiontest

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

func streaming(t *testing.T, s *session.Session) {
	in := noise(16 << 20)
	var out, errOut bytes.Buffer
	res, err := s.Stream(t.Context(), sandbox.ExecRequest{Command: "tee /dev/stderr; exit 6"},
		sandbox.Streams{Stdin: bytes.NewReader(in), Stdout: &out, Stderr: &errOut})
	if err != nil || res.ExitCode != 6 || res.Status != sandbox.ExecCompleted {
		t.Fatalf("%+v, %v", res.ExecStatus, err)
	}
	if !bytes.Equal(out.Bytes(), in) || !bytes.Equal(errOut.Bytes(), in) {
		t.Errorf("%d bytes in, %d and %d out", len(in), out.Len(), errOut.Len())
	}
	res, err = s.Stream(t.Context(), sandbox.ExecRequest{Command: "cat; echo kept >&2"}, sandbox.Streams{})
	if err != nil || res.ExitCode != 0 {
		t.Errorf("no streams: %+v, %v", res.ExecStatus, err)
	}
	res, err = s.Stream(t.Context(), sandbox.ExecRequest{Command: "echo partial; sleep 600", Timeout: timeout}, sandbox.Streams{Stdout: &out})
	if err != nil || res.Status != sandbox.ExecTimedOut || !bytes.HasSuffix(out.Bytes(), []byte("partial\n")) {
		t.Errorf("timeout: %+v, %v", res.ExecStatus, err)
	}
}

// failing returns an error after its data.
type failing struct {
	data io.Reader
	err  error
}

func (f *failing) Read(p []byte) (int, error) {
	n, err := f.data.Read(p)
	if errors.Is(err, io.EOF) {
		err = f.err
	}
	return n, err
}

func (f *failing) Write([]byte) (int, error) { return 0, f.err }

func streamFailures(t *testing.T, s *session.Session) {
	broken := errors.New("the disk of the host failed")
	_, err := s.Stream(t.Context(), sandbox.ExecRequest{Command: "cat > stream-input; touch stream-ended"},
		sandbox.Streams{Stdin: &failing{strings.NewReader("half"), broken}})
	if !errors.Is(err, broken) {
		t.Errorf("an input that broke off = %v", err)
	}
	if _, err := s.StatFile(t.Context(), "stream-ended"); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("the command took half an input for the whole: %v", err)
	}
	endless := sandbox.ExecRequest{Command: "echo x; sleep 1000"}
	_, err = s.Stream(t.Context(), endless, sandbox.Streams{Stdout: &failing{err: broken}})
	if !errors.Is(err, broken) {
		t.Errorf("a writer that failed = %v", err)
	}
	for _, req := range []sandbox.ExecRequest{
		{Command: "true", Stdin: []byte("x")}, {Command: "true", StdinOpen: true}, {Command: "true", Yield: 1}, {Command: "true", Background: true},
	} {
		if _, err := s.Stream(t.Context(), req, sandbox.Streams{}); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("Stream(%+v) = %v", req, err)
		}
	}
}
