// Package sessiontest contains tests for sessions on every backend. The tests of package session run them with local
// processes, and e2e/conformance runs them on every engine. Tests in internal/guest/client cover the guest agent, for
// example killing process trees and keeping every byte.
package sessiontest

import (
	"bytes"
	"crypto/rand"
	"testing"
	"time"

	"github.com/workcell-dev/workcell/sandbox"
	"github.com/workcell-dev/workcell/session"
)

const (
	// patience is how long tests wait for an event. Test machines may be very busy.
	patience = 3 * time.Minute
	// timeout is the timeout of commands to time out after some work.
	timeout = 8 * time.Second
)

// sessionCase is one test. Several tests share a session.
type sessionCase struct {
	name string
	run  func(*testing.T, *session.Session)
}

func runCases(t *testing.T, s *session.Session, cases []sessionCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t, s)
		})
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Run runs a command and fails the test on an error.
func Run(t testing.TB, s *session.Session, req sandbox.ExecRequest) sandbox.ExecResult {
	t.Helper()
	res, err := s.Exec(t.Context(), req)
	if err != nil {
		t.Fatalf("Exec(%.100v %s): %v", req.Argv, req.Command, err)
	}
	return res
}

// Output runs a shell command, which must succeed, and returns the output.
func Output(t testing.TB, s *session.Session, command string) string {
	t.Helper()
	res := Run(t, s, sandbox.ExecRequest{Command: command})
	if res.ExitCode != 0 || res.Status != sandbox.ExecCompleted {
		t.Fatalf("Exec(%s): %+v, stderr %q", command, res.ExecStatus, res.Stderr.Bytes())
	}
	return string(res.Stdout.Bytes())
}

// Eventually waits until is returns true.
func Eventually(t testing.TB, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}

func write(t *testing.T, s *session.Session, name string, data []byte, opts sandbox.WriteFileOptions) sandbox.FileInfo {
	t.Helper()
	info, err := s.WriteFile(t.Context(), name, bytes.NewReader(data), opts)
	if err != nil {
		t.Fatalf("WriteFile(%s): %v", name, err)
	}
	return info
}

func read(t *testing.T, s *session.Session, name string, opts sandbox.ReadFileOptions) []byte {
	t.Helper()
	data, _, err := s.ReadFileBytes(t.Context(), name, opts)
	if err != nil {
		t.Fatalf("ReadFile(%s): %v", name, err)
	}
	return data
}

// noise returns n random bytes.
func noise(n int) []byte {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return b
}
