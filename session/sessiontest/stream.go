package sessiontest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/workcell-dev/workcell/backend"
	"github.com/workcell-dev/workcell/session"
)

func streaming(t *testing.T, s *session.Session) {
	in := Noise(16 << 20)
	var out, errOut bytes.Buffer
	res, err := s.Stream(t.Context(), session.ExecRequest{Command: "tee /dev/stderr; exit 6"},
		session.Streams{Stdin: bytes.NewReader(in), Stdout: &out, Stderr: &errOut})
	if err != nil || res.ExitCode != 6 || res.Status != session.ExecCompleted {
		t.Fatalf("%+v, %v", res.ExecStatus, err)
	}
	if !bytes.Equal(out.Bytes(), in) || !bytes.Equal(errOut.Bytes(), in) {
		t.Errorf("%d bytes in, %d and %d out", len(in), out.Len(), errOut.Len())
	}
	res, err = s.Stream(t.Context(), session.ExecRequest{Command: "cat; echo kept >&2"}, session.Streams{})
	if err != nil || res.ExitCode != 0 {
		t.Errorf("no streams: %+v, %v", res.ExecStatus, err)
	}
	res, err = s.Stream(t.Context(), session.ExecRequest{Command: "echo partial; sleep 600", Timeout: timeout}, session.Streams{Stdout: &out})
	if err != nil || res.Status != session.ExecTimedOut || !bytes.HasSuffix(out.Bytes(), []byte("partial\n")) {
		t.Errorf("timeout: %+v, %v", res.ExecStatus, err)
	}
}

// failing fails after its data.
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
	marker := newMarker()
	broken := errors.New("the disk of the host failed")
	_, err := s.Stream(t.Context(), session.ExecRequest{Command: "cat > stream-input; touch stream-ended"},
		session.Streams{Stdin: &failing{strings.NewReader("half"), broken}})
	if !errors.Is(err, broken) {
		t.Errorf("an input that broke off = %v", err)
	}
	if _, err := s.StatFile(t.Context(), "stream-ended"); !errors.Is(err, backend.ErrNotFound) {
		t.Errorf("the command took half an input for the whole: %v", err)
	}
	_, err = s.Stream(t.Context(), session.ExecRequest{Command: "echo x; sleep " + marker}, session.Streams{Stdout: &failing{err: broken}})
	if !errors.Is(err, broken) {
		t.Errorf("a writer that failed = %v", err)
	}
	eventually(t, "the command is gone", func() bool { return survivors(t, s, marker) == "" })
	for _, req := range []session.ExecRequest{
		{Command: "true", Stdin: []byte("x")}, {Command: "true", StdinOpen: true}, {Command: "true", Yield: 1}, {Command: "true", Background: true},
	} {
		if _, err := s.Stream(t.Context(), req, session.Streams{}); !errors.Is(err, backend.ErrInvalid) {
			t.Errorf("Stream(%+v) = %v", req, err)
		}
	}
}

// concurrentExecs mixes 50 commands with file calls; nothing crosses.
func concurrentExecs(t *testing.T, s *session.Session) {
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			name := fmt.Sprintf("concurrent/%d", i)
			want := strings.Repeat(fmt.Sprintf("%d ", i), 2000)
			if _, err := s.WriteFile(t.Context(), name, strings.NewReader(want), session.WriteFileOptions{}); err != nil {
				t.Error(err)
				return
			}
			res, err := s.Exec(t.Context(), session.ExecRequest{Argv: []string{"cat", name}})
			if err != nil || string(res.Stdout.Bytes()) != want {
				t.Errorf("command %d: %d bytes of output, %v", i, len(res.Stdout.Bytes()), err)
			}
			got, _, err := s.ReadFileBytes(t.Context(), name, session.ReadFileOptions{})
			if err != nil || string(got) != want {
				t.Errorf("file %d: %d bytes, %v", i, len(got), err)
			}
		})
	}
	wg.Wait()
	list, err := s.ListFiles(t.Context(), "concurrent", session.ListFilesOptions{})
	if err != nil || len(list.Entries) != 50 || !slices.IsSortedFunc(list.Entries, func(a, b session.FileInfo) int { return strings.Compare(a.Path, b.Path) }) {
		t.Errorf("%d entries, %v", len(list.Entries), err)
	}
}
