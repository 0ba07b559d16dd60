//go:build linux

package server_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/yamux"
	"github.com/workcell-dev/workcell/internal/guest/client"
	"github.com/workcell-dev/workcell/internal/guest/server"
	"github.com/workcell-dev/workcell/internal/guest/wire"
	"github.com/workcell-dev/workcell/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// newServer returns a guest agent in the test's process. It serves one host at a time over net.Pipe.
func newServer(t testing.TB) (*server.Server, string) {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	s, err := server.New(server.Config{Workdir: dir, Version: "in process"})
	must(t, err)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s, dir
}

// pipe serves one end of a pipe and returns the other end.
func pipe(t testing.TB, s *server.Server) net.Conn {
	t.Helper()
	host, guest := net.Pipe()
	var done sync.WaitGroup
	done.Go(func() { _ = s.ServeConn(guest) })
	t.Cleanup(func() { _ = host.Close(); done.Wait() })
	return host
}

func connect(t testing.TB, s *server.Server) *client.Conn {
	t.Helper()
	c, err := client.New(context.Background(), pipe(t, s))
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// TestClosedWorkdir verifies that New restores the permissions of the user on a workspace directory whose mode denies
// access.
func TestClosedWorkdir(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	must(t, err)
	for closed, want := range map[os.FileMode]os.FileMode{0o311: 0o711, 0: 0o700, 0o600: 0o700, 0o577: 0o577} {
		must(t, os.Chmod(dir, closed))
		s, err := server.New(server.Config{Workdir: dir})
		if err != nil {
			t.Fatalf("mode %o: %v", closed, err)
		}
		if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != want {
			t.Errorf("mode %o became %v, %v, want %o", closed, st.Mode(), err, want)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// raw performs the handshake manually and returns a multiplexer.
func raw(t testing.TB, rw net.Conn) *yamux.Session {
	t.Helper()
	go func() { _, _ = rw.Write(wire.AppendMarker(nil, wire.FromHost, wire.ProtocolVersion)) }()
	if version, err := wire.ReadMarker(rw, wire.FromGuest); err != nil || version != wire.ProtocolVersion {
		t.Fatal(version, err)
	}
	if _, err := wire.ReadFrame(rw, nil); err != nil {
		t.Fatal(err)
	}
	cfg := yamux.DefaultConfig()
	cfg.LogOutput = io.Discard
	mux, err := yamux.Client(rw, cfg)
	must(t, err)
	t.Cleanup(func() { _ = mux.Close() })
	return mux
}

// TestUnknownAndMalformedRequests verifies that every request gets a response and the connection stays open.
func TestUnknownAndMalformedRequests(t *testing.T) {
	s, _ := newServer(t)
	mux := raw(t, pipe(t, s))
	frame := func(f wire.Frame) []byte {
		b, err := wire.AppendFrame(nil, f)
		must(t, err)
		return b
	}
	request := func(head string) []byte { return frame(wire.Frame{Kind: wire.KindRequest, Head: []byte(head)}) }
	for name, tc := range map[string]struct {
		send []byte
		want wire.Code
	}{
		"unknown op":        {request(`{"op":"fly-v1","arg":{}}`), wire.CodeUnsupported},
		"later version":     {request(`{"op":"run-v99","arg":{"exec_id":"x"}}`), wire.CodeUnsupported},
		"no op":             {request(`{}`), wire.CodeUnsupported},
		"not JSON":          {request(`{"op":`), wire.CodeInvalid},
		"not an object":     {request(`[]`), wire.CodeInvalid},
		"wrong types":       {request(`{"op":"run-v1","arg":{"exec_id":7}}`), wire.CodeInvalid},
		"argument missing":  {request(`{"op":"run-v1"}`), wire.CodeInvalid},
		"body missing":      {request(`{"op":"stdin-v1","arg":{"exec_id":"x"}}`), wire.CodeInvalid},
		"not a request":     {frame(wire.Frame{Kind: wire.KindEOF, Channel: wire.ChanFile}), wire.CodeInvalid},
		"an answer":         {frame(wire.Frame{Kind: wire.KindAnswer, Head: []byte("{}")}), wire.CodeInvalid},
		"malformed frame":   {make([]byte, wire.FramePrefixSize), wire.CodeInvalid},
		"oversized frame":   {[]byte{1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0}, wire.CodeInvalid},
		"negative sequence": {request(`{"op":"read-v1","arg":{"exec_id":"none","since_seq":-5}}`), wire.CodeNotFound},
		"no path":           {request(`{"op":"file-stat-v1","arg":{}}`), wire.CodeInvalid},
		"unknown fields":    {request(`{"op":"wait-v2","arg":{"exec_id":"none","future":1}}`), wire.CodeNotFound},
	} {
		st, err := mux.OpenStream()
		if err != nil {
			t.Fatalf("%s: the connection is gone: %v", name, err)
		}
		if _, err := st.Write(tc.send); err != nil {
			t.Fatal(err)
		}
		_ = st.SetReadDeadline(time.Now().Add(2 * time.Minute))
		f, err := wire.ReadFrame(st, nil)
		var e wire.Error
		if err != nil || f.Kind != wire.KindError || wire.Decode(f.Head, nil, &e) != nil || e.Code != tc.want {
			t.Errorf("%s: kind %d, %+v, %v", name, f.Kind, e, err)
		}
		_ = st.Close()
	}
	// An empty stream and a partial request also do no harm.
	for _, part := range [][]byte{nil, {1, 0}, request(`{"op":"health-v1"}`)[:20]} {
		st, err := mux.OpenStream()
		must(t, err)
		_, _ = st.Write(part)
		_ = st.Close()
	}
	if _, err := mux.OpenStream(); err != nil {
		t.Errorf("the connection is gone: %v", err)
	}
}

// TestOtherVersion verifies that a host with another version only learns the guest agent's version, and any other peer
// learns nothing.
func TestOtherVersion(t *testing.T) {
	s, _ := newServer(t)
	const other = 99
	own := wire.AppendMarker(nil, wire.FromGuest, wire.ProtocolVersion)
	for name, tc := range map[string]struct{ say, want []byte }{
		"version": {wire.AppendMarker(nil, wire.FromHost, other), own},
		"noise":   {make([]byte, len(own)), nil},
		"a guest": {own, nil},
	} {
		host := pipe(t, s)
		go func() { _, _ = host.Write(tc.say) }()
		if got, err := io.ReadAll(host); err != nil || !bytes.Equal(got, tc.want) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestNew(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	must(t, errors.Join(os.WriteFile(file, nil, 0o644), os.Symlink(dir, link)))
	for _, workdir := range []string{"", "relative", dir + "/", dir + "/../x", dir + "/missing", file, link} {
		if s, err := server.New(server.Config{Workdir: workdir}); err == nil {
			t.Errorf("a guest in %q", workdir)
			_ = s.Close()
		}
	}
}
